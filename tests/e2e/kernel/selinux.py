"""Debian's policy of SELinux, which the guest enforces for containers.

The guest loads it before anything else runs. Runtime and kubelet have the type that Debian gives containerd. As the
file tree of the guest has no labels, that type is permissive, like the kernel's: only containers are confined.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Final

from tests.e2e.common import roots
from tests.e2e.common.cache import cached, key
from tests.e2e.common.processes import run
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite
from tests.e2e.kernel.world import PROJECT, part

PART: Final = "selinux"
STOCK, LABELLED, ALLOWED = "stock", "labelled", "allowed"
"""Debian's policy; with the labels of the module for phones; with the whole module."""
MODULE: Final = PROJECT / "deploy/selinux/aosp-phone.cil"
BEFORE: Final = f"""
mount -t selinuxfs selinuxfs /sys/fs/selinux
mkdir -p /etc/selinux
cp -r "$E2E_SELINUX/contexts/." /etc/selinux
echo 0 >/proc/sys/kernel/printk_ratelimit
dd bs=64M if="$E2E_SELINUX/{STOCK}" of=/sys/fs/selinux/load
echo 1 >/sys/fs/selinux/enforce
"""
"""Lines of the script that starts the guest."""
ENTER: Final = ("/usr/bin/setpriv", "--selinux-label=system_u:system_r:dockerd_t:s0")
"""The words before a command that give it the type of the runtime. busybox has a setpriv, too, without this option."""

_DENIAL: Final = re.compile(
    r'avc: +denied +\{ (.*) \} for .* comm="probe" .*'
    r"scontext=\w+:\w+:container_t:\S+ tcontext=\w+:\w+:(\w+):\S+ tclass=(\w+)"
)
_FILES: Final = Path("/sys/fs/selinux")
_PACKAGES: Final = ("bzip2", "policycoreutils", "secilc", "selinux-policy-default")
_VERSION: Final = "33"
"""Of the binary format; the newest that Linux 6.12 reads."""
_MACHINE: Final = """\
(typepermissive dockerd_t)
(typepermissive kernel_t)
(allow unlabeled_t filesystem_type (filesystem (associate)))
(allow file_type filesystem_type (filesystem (associate)))
"""
"""What the guest requires besides: its runtime makes files on file systems that have no labels, or one label."""
_COMPILE: Final = f"""
mkdir /modules
for file in /usr/share/selinux/default/*.pp.bz2; do
    bunzip2 --stdout "$file" >/module.pp
    /usr/libexec/selinux/hll/pp /module.pp "/modules/$(basename "$file" .pp.bz2).cil"
done
for name in {STOCK} {LABELLED} {ALLOWED}; do
    secilc --multiple-decls --mls true --policyvers {_VERSION} --output /$name --filecontext /dev/null \\
        /modules/*.cil /$name.cil
done
"""


def build() -> Path:
    """Return the directory with the policies, and with Debian's contexts for containers. Raises MissingError."""
    return cached(f"selinux-{key([MODULE, _MACHINE, _COMPILE, *_PACKAGES])}", _build)


def _build(directory: Path) -> None:
    say("# building policies of SELinux: takes a minute, once")
    root = directory / "root"
    roots.build(Suite("trixie", directory / "apt"), root, *_PACKAGES)
    rules = MODULE.read_text()
    labels = "".join(line for line in rules.splitlines(keepends=True) if line.startswith("(genfscon"))
    for name, text in {STOCK: "", LABELLED: labels, ALLOWED: rules}.items():
        (root / f"{name}.cil").write_text(_MACHINE + text)
    roots.run(root, _COMPILE)
    for name in (STOCK, LABELLED, ALLOWED):
        (root / name).rename(directory / name)
    contexts = (root / "etc/selinux").rename(directory / "contexts")
    (contexts / "config").write_text("SELINUX=enforcing\nSELINUXTYPE=default\n")
    shutil.rmtree(root)
    shutil.rmtree(directory / "apt")


def load(policy: str) -> None:
    """Load one of the policies into the guest's kernel, which has to enforce it."""
    (_FILES / "load").write_bytes((part(PART) / policy).read_bytes())
    assert enforced()


def enforced() -> bool:
    """Return whether the kernel enforces a policy."""
    enforce = _FILES / "enforce"
    return enforce.exists() and enforce.read_text() == "1"


def label(directory: Path) -> None:
    """Give the empty directory of a runtime the label of layers of images, if a policy is enforced."""
    if enforced():
        os.setxattr(directory, "security.selinux", b"system_u:object_r:container_ro_file_t:s0")


def label_of(path: str) -> str:
    """Return the type of a file."""
    return os.getxattr(path, "security.selinux").decode().split(":")[2]


def context(pid: int) -> tuple[str, str]:
    """Return the type of a process, and its level with the categories."""
    _, _, kind, level = Path(f"/proc/{pid}/attr/current").read_text().rstrip("\0\n").split(":", 3)
    return kind, level


def denials() -> set[str]:
    """Return what the kernel has denied to the probe since the last call: permissions, type and class of the object."""
    return {" ".join(found.groups()) for found in _DENIAL.finditer(run("dmesg", "--read-clear"))}
