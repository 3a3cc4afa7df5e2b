"""``python -m aosp_plugin``, and what the command ``aosp-plugin`` starts."""

import sys

from aosp_plugin import cli


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
