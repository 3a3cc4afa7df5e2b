#!/usr/bin/env python3
"""Create, list and delete binder nodes for tests: ``aosp-plugin nodes`` from a bare checkout.

hack/binder_nodes.py create --count 5000
hack/binder_nodes.py list
hack/binder_nodes.py delete
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - whoever runs a checkout has not been asked by pip
    sys.exit("error: this needs Python 3.11 or later, and this is " + sys.version.split()[0])

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from aosp_plugin.cli.nodes import main

if __name__ == "__main__":
    sys.exit(main(prog="binder_nodes.py"))
