"""Entry point of ``python -m aosp_plugin`` and of the command ``aosp-plugin``."""

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    # gRPC's C core logs on its own ("Got goaway") unless this is set before it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from aosp_plugin.cli.main import main as run  # noqa: PLC0415 - the variable has to be set first

    sys.exit(run())


if __name__ == "__main__":
    main()
