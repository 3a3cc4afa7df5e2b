"""``python -m hack.image.assemble``: the steps of the Dockerfile's build stage."""

from __future__ import annotations

import argparse
import glob
import os

from hack.image.assemble import debian, interpreter, libraries, packages, stdlib
from hack.image.assemble.tree import Tree

_USERS = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"
_GROUPS = "root:x:0:\nnonroot:x:65532:\n"


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(prog="python -m hack.image.assemble", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("packages", help="install the locked wheels of the target's platform")
    step.add_argument("--requirements", required=True, metavar="FILE")
    step.add_argument("--directory", required=True, metavar="DIR")
    step = steps.add_parser("root", help="make the root directory of the image")
    step.add_argument("--packages", required=True, metavar="DIR", help="what the other step installed")
    step.add_argument("--wheel", required=True, metavar="PATTERN", help="the plugin's wheel")
    step.add_argument("--base", required=True, metavar="DIR", help="root directory of the target's base image")
    step.add_argument("--root", required=True, metavar="DIR", help="the directory to make")
    for step in steps.choices.values():
        step.add_argument("--arch", required=True, choices=sorted(packages.MACHINES))
    options = parser.parse_args()
    if options.step == "packages":
        locked = ["--require-hashes", "--requirement", options.requirements]
        packages.install(options.arch, options.directory, locked)
    else:
        make_root(options)


def make_root(options: argparse.Namespace) -> None:
    """Make the root directory of the image."""
    tree = Tree(options.base, options.root)
    site_packages = tree.inside(interpreter.SITE_PACKAGES)
    packages.copy(options.packages, site_packages)
    packages.install(options.arch, site_packages, ["--no-deps", "--no-index", *glob.glob(options.wheel)])
    packages.clean(site_packages)
    stdlib.check_imports(site_packages)
    program = interpreter.copy(tree)
    libraries.copy(tree, options.arch, program)
    tree.write("/etc/passwd", _USERS)
    tree.write("/etc/group", _GROUPS)
    # Without it, the C library asks DNS before /etc/hosts.
    tree.write("/etc/nsswitch.conf", "hosts: files dns\n")
    os.mkdir(tree.inside("/tmp"))  # noqa: S108
    os.chmod(tree.inside("/tmp"), 0o1777)  # noqa: S108, S103
    debian.record(tree)


if __name__ == "__main__":
    main()
