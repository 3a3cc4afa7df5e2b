"""A phone's container in which Android's binder software runs: its devices, its files, and commands in it."""

import difflib
import shutil
from pathlib import Path
from typing import Final, Protocol

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.config.keys import Phones
from tests.e2e.kernel.aosp_parts import VERSIONS
from tests.e2e.kernel.initrd import BUSYBOX
from tests.e2e.kernel.parts import HERE
from tests.e2e.kubelet.node import device_tool

CLIENT: Final = 4242
"""The user of the clients."""


FOUND: Final = (
    "resource_name: aosp.io/phone\nsets: {size: 3}\ncontainer_paths: [/dev/binder, /dev/hwbinder, /dev/vndbinder]\n"
)
"""The configuration of 4 phones: of 12 devices in a binderfs that hack/binder_devices.py mounted."""
BINDERFS: Final = "phones: {count: 4}\n"
"""Likewise, with a binderfs each."""


class Phone(Protocol):
    """A phone's container."""

    name: str

    def execute(self, user: int, *words: str) -> str:
        """Run a program in the container as a user, and return its output."""

    def log(self) -> list[str]:
        """Return the lines that the container's processes have printed since its last start."""


def assemble(root: Path, android: Path) -> None:
    """Copy busybox and Android's programs into the root directory of a container."""
    for name in ("bin", "proc", "sys", "dev", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copytree(android, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns(VERSIONS))
    shutil.copy(BUSYBOX, root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    shutil.copy(HERE / "android.sh", root / "bin")
    (root / "tmp").chmod(0o1777)


def remove_devices() -> None:
    """Remove the devices of both kinds. The plugin has ended."""
    device_tool("delete")
    for directory in Path(Phones(count=1).directory).glob("*"):
        binderfs.unmount(str(directory))
        directory.rmdir()


def talk(phone: Phone, conversation: dict[str, list[str]], path: str) -> None:
    """Run commands in the phone as the clients' user, and check what they print."""
    script = f"export PATH={path}; " + "".join(f"echo '$ {words}'; {words} 2>&1; " for words in conversation) + "true"
    printed = phone.execute(CLIENT, "/bin/busybox", "sh", "-c", script).splitlines()
    expected = [line for words, lines in conversation.items() for line in (f"$ {words}", *lines)]
    assert printed == expected, f"{phone.name}: " + "; ".join(difflib.unified_diff(expected, printed, n=0, lineterm=""))
