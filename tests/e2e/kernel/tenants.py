"""In the guest: a phone in which rsb_hub and a service run, and what the clients of two libraries see there.

The first process of the phone's container is ``clients/phone.sh``. The clients run in the same container as another
user. All that they print is printed as comments of the run.
"""

from __future__ import annotations

import difflib
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.config.keys import Phones
from tests.e2e.common.report import say
from tests.e2e.kernel.client_parts import SOURCES, VERSIONS
from tests.e2e.kernel.initrd import BUSYBOX
from tests.e2e.kubelet.node import nodes
from tests.e2e.kubelet.waiting import PATIENCE, until

USERS: Final = {"system": 1000, "shell": 2000}
"""Users of Android that become service manager."""
CLIENT: Final = 4242
"""The user of the clients."""
_INTERFACE: Final = "test.ITenant"
_MARK: Final = "e2e: starting"


class Kind(NamedTuple):
    """How phones get their binder devices."""

    title: str
    configuration: str
    """Of a plugin with 4 phones."""
    prefix: str
    """What leads from /dev/binderfs, where rsb_hub looks for devices, to the phone's three."""


FOUND: Final = Kind(
    "found devices",
    "resource_name: aosp.io/phone\nsets: {size: 3}\ncontainer_paths: [/dev/binder, /dev/hwbinder, /dev/vndbinder]\n",
    "../",
)
"""12 devices of a binderfs that ``aosp-plugin nodes`` mounted."""
BINDERFS: Final = Kind("a binderfs each", "phones: {count: 4}\n", "")


class Phone(Protocol):
    """A phone's container."""

    name: str

    def execute(self, user: int, *words: str) -> str:
        """Run a program in the container as a user, and return its output."""

    def log(self) -> list[str]:
        """Return the lines that the container's processes have printed since its last start."""


def assemble(root: Path, *parts: Path) -> None:
    """Copy busybox and the parts into the root directory of a container."""
    for name in ("bin", "etc", "proc", "sys", "dev", "tmp"):
        (root / name).mkdir(parents=True)
    for part in parts:
        shutil.copytree(part, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns(VERSIONS))
    shutil.copy(BUSYBOX, root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    for name in ("phone.sh", "android.sh"):
        shutil.copy(SOURCES / name, root / "bin")
    (root / "tmp").chmod(0o1777)
    for name in ("gbinder.conf", "passwd"):
        shutil.copy(SOURCES / name, root / "etc")


def new_devices(kind: Kind) -> None:
    """Make devices of which no process was service manager; the plugin mounts those of its own phones."""
    remove_devices()
    if kind is FOUND:
        nodes("create", "--count", "12")


def remove_devices() -> None:
    """Remove the devices of both kinds. The plugin has ended."""
    nodes("delete")
    for directory in Path(Phones(count=1).directory).glob("*"):
        binderfs.unmount(str(directory))
        directory.rmdir()


def phone_command(kind: Kind, name: str, user: str = "") -> list[str]:
    """Return the command of a phone's container."""
    return ["/bin/phone.sh", kind.prefix or "-", name, user]


def registered(phone: Phone, *, seconds: float = PATIENCE) -> None:
    """Wait until the phone's service is registered."""
    line = f"tenant_service: registered {_INTERFACE}/{phone.name} on /dev/binder"
    until(
        lambda: line in phone.log() or _raise(phone.log()), f"{phone.name}: the service is registered", seconds=seconds
    )


def works(kind: Kind, phone: Phone, other: str, manager: int) -> None:
    """Check that clients of both libraries find and call the phone's service, and nothing of the other phone."""
    registered(phone)
    talk(phone, _conversation(kind.prefix, phone.name, other, manager))
    # containerd writes its log file later than the clients end.
    line = f"tenant_service: called by user {CLIENT}"
    until(lambda: phone.log().count(line) == 2, f"{phone.name}: the service was called by both libraries")
    say(f"{phone.name}: {line} (twice)")


def alone(kind: Kind, phone: Phone) -> None:
    """Check that the phone's manager still lists the phone's service alone."""
    talk(phone, {f"rsb_service --device {kind.prefix}binder list": _services(phone.name)})


def mark_kernel_log(name: str) -> None:
    """Write a line to the kernel's log; :func:`refused` reads what comes after it."""
    Path("/dev/kmsg").write_text(f"{_MARK} {name}\n")


def bad_uid(user: int, before: int) -> None:
    """Check that since :func:`mark_kernel_log` the kernel has logged why this user's manager was refused."""
    reason = f"BINDER_SET_CONTEXT_MGR bad uid {user} != {before}"
    log = subprocess.run([BUSYBOX, "dmesg"], capture_output=True, text=True, check=True).stdout
    since = log.rpartition(_MARK)[2].splitlines()
    lines = [line for line in since if reason in line]
    assert lines, since
    say(f"kernel: {lines[0]}")


def _services(name: str) -> list[str]:
    return ["manager", f"{_INTERFACE}/{name}"]


def _conversation(prefix: str, name: str, other: str, manager: int) -> dict[str, list[str]]:
    """Return commands of the clients, and the lines that each prints."""
    own, call = f"{_INTERFACE}/{name}", f"timeout 60 binder-call -a -d /dev/binder {_INTERFACE}/{name}"
    return {
        f"rsb_service --device {prefix}binder list": _services(name),
        **{f"rsb_service --device {prefix}{device} list": ["manager"] for device in ("hwbinder", "vndbinder")},
        f"rsb_service --device {prefix}binder check {own}": [f"{own}: registered ({_INTERFACE})"],
        f"tenant_client /dev/binder {name}": [
            f"tenant_client: {own}: phone {name}",
            f"tenant_client: the service was called by user {CLIENT}",
            f"tenant_client: the service has the file: written by user {manager}",
        ],
        f"tenant_client /dev/binder {other}": [f"tenant_client: {_INTERFACE}/{other}: NameNotFound"],
        "timeout 60 binder-list -d /dev/binder": _services(name),
        # The first number is the status of the reply.
        f"{call} 1 reply i32 i32": [f"0 {CLIENT}"],
        f"{call} 2 reply i32 s16": [f'0 "{name}"U'],
    }


def talk(phone: Phone, conversation: dict[str, list[str]], path: str = "/bin") -> None:
    """Run commands in the phone as the clients' user, print what they print, and check it."""
    script = f"export PATH={path}; " + "".join(f"echo '$ {words}'; {words} 2>&1; " for words in conversation) + "true"
    output = phone.execute(CLIENT, "/bin/busybox", "sh", "-c", script)
    printed = [line.rstrip() for line in output.splitlines()]  # binder-call ends its line with a space
    expected = [line for words, lines in conversation.items() for line in (f"$ {words}", *lines)]
    for line in printed:
        say(f"{phone.name}: {line}")
    assert printed == expected, f"{phone.name}: " + "; ".join(difflib.unified_diff(expected, printed, n=0, lineterm=""))


def _raise(lines: list[str]) -> bool:
    raise AssertionError("; ".join(lines[-5:]))
