"""``python -m aosp_plugin``, and what the command ``aosp-plugin`` starts."""

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    # gRPC's C core writes lines of its own past the log ("Got goaway"), unless it is told before it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from aosp_plugin.cli.main import main as run  # noqa: PLC0415 - loads grpc

    sys.exit(run())


if __name__ == "__main__":
    main()
