"""A simulated host: its files, its clock, what makes its calls fail, and who hears of changes."""

import asyncio
import contextlib
import errno
import os
import random
import stat
import struct
from collections.abc import Callable
from typing import Any

from tests.binder_driver import MAJOR
from tests.simulation.containers import Containers
from tests.simulation.files import Files, Inode
from tests.simulation.processes import Descriptor, Process, current
from tests.simulation.settings import NAMES, driver_of

PROC = {
    "/proc/devices": f"Character devices:\n  1 mem\n{MAJOR} binder\n\nBlock devices:\n",
    "/proc/filesystems": "nodev\tproc\nnodev\tbinder\n\text4\n",
    "/proc/misc": "",
    "/proc/sys/kernel/random/boot_id": "00000000-0000-0000-0000-000000000001\n",
}

DIRECTORIES = (
    "/dev/char",
    "/dev/dri",
    "/etc/aosp-plugin",
    "/run",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/pod-resources",
    "/var/run/cdi",
)

KUBELET = "/var/lib/kubelet"
DRIVERS = tuple(driver_of(name) for names in NAMES.values() for name in names)
OWN = (
    "/dev/char",
    *(f"/run/aosp-binderfs/{directory}" for directory in ("phones", "other-phones", "tablets", "other-tablets")),
    *(f"{KUBELET}/device-plugins/{hidden}aosp-" for hidden in ("", ".")),
    *(f"{KUBELET}/plugins_registry/{hidden}{driver}-" for hidden in ("", ".") for driver in DRIVERS),
    *(f"{KUBELET}/plugins/{driver}" for driver in DRIVERS),
    *(
        f"{directory}/{hidden}{name}"
        for directory in ("/var/run/cdi", "/etc/cdi")
        for hidden in ("", ".")
        for name in (*(f"{driver}-claim_" for driver in DRIVERS), "aosp.io_", "example.com_", ".aosp-", "aosp-")
    ),
)
"""Where a plugin may change files."""

MAY_MAKE = ("/var/run/cdi", "/etc/cdi", f"{KUBELET}/plugins")
"""Directories that a plugin may create."""

SAFETY = 65.0
"""Seconds after which a change is known that no event has reported."""

_ADD, _VERSION = 0xC1086201, 0xC0046209
_SECONDS = 1_000_000_000


class Host:
    """One node."""

    def __init__(self, seed: int, time: Callable[[], float]) -> None:
        """``time`` returns the simulated seconds."""
        self.rng = random.Random(seed)  # noqa: S311 - a simulation
        self._time = time
        self.clock_offset = 1_700_000_000.0
        self.files = Files(lambda: int(self.wall_time() * _SECONDS))
        self.lines: list[str] = []
        """The log of the run."""
        self.violations: list[str] = []
        self.listeners: dict[Inode, Any] = {}
        """What accepts connections on a socket."""
        self.containers = Containers(self.files, self.violated)
        self.hanging = False
        self.hung_at = float("-inf")
        """When a call was hanging last."""
        self.slow = 0.0
        self.no_descriptors = False
        self.no_space = False
        self.no_mounts = False
        self.no_devices = False
        self.api: Any = None
        """The API server."""
        self.routes: dict[Process, dict[str, Callable[[], Any]]] = {}
        """What each process serves by HTTP, by path."""
        self.lost_events = False
        self.late_events = 0.0
        self.overflows_until = 0.0
        self._lost_until = float("-inf")
        self._used = 0.0
        self._pids = 100
        for path in DIRECTORIES:
            self.files.make_directories(path)

    # -- time

    def monotonic(self) -> float:
        """Return the monotonic time in seconds."""
        return 1000.0 + self._time()

    def wall_time(self) -> float:
        """Return the seconds since the epoch."""
        return self.clock_offset + self._time()

    def call_time(self) -> float:
        """Return how long a call in a worker thread takes now, or waits for a processor."""
        return self.rng.uniform(0.0001, 0.002) + self.slow

    def thread_time(self) -> float:
        """Return the processor time, of which each question takes some: scans pause in proportion."""
        self._used += self.call_time()
        return self._used

    def calls_until_pause(self) -> int:
        """Return the number of the next host call of a process before which others run: about every 20th one."""
        return 1 + int(self.rng.expovariate(0.05))

    # -- the run

    def log(self, event: str, **fields: object) -> None:
        """Write a line of the log of the run."""
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        self.lines.append(f"{self._time():.6f} {event} {text}".rstrip())

    def violated(self, text: str) -> None:
        """Note that an invariant does not hold."""
        self.log("VIOLATION", text=text)
        self.violations.append(f"{self._time():.3f} s: {text}")

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function after some simulated time."""
        asyncio.get_running_loop().call_later(seconds, function)

    def report(self, notify: Callable[[], object]) -> None:
        """Report a file or mount event, unless it is lost."""
        if self.lost_events:
            self._lost_until = self._time() + SAFETY
        else:
            delay = self.rng.uniform(0.0, 0.001 + self.late_events)
            self.later(max(delay, self.overflows_until - self.monotonic()), notify)

    def is_without_events(self) -> bool:
        """Return whether an event was lost since the last scan that needs none, or may be."""
        return self._time() < self._lost_until

    def stop_on_signals(self, stop: Callable[[], None], reload: Callable[[], None] | None = None) -> Callable[[], None]:
        """Let the current process get signals; return what ends that."""
        return current().handle_signals(stop, reload)

    def new_process(self) -> Process:
        """Return a process that has done nothing yet."""
        self._pids += 1
        return Process(self, self._pids)

    # -- calls

    def path(self, path: Any) -> str:
        """Return a path as a text, with descriptors resolved that are directories."""
        text = os.fsdecode(path)
        if text.startswith("/proc/self/fd/"):
            number, _, rest = text.removeprefix("/proc/self/fd/").partition("/")
            file = current().descriptors[int(number)]
            return f"{file.path}/{rest}".rstrip("/")
        return text

    def at(self, path: Any, *, follow: bool = True) -> Inode:
        """Return the file at a path of the current process. Raises OSError."""
        text = path if isinstance(path, str) else os.fsdecode(path)
        if not text.startswith("/proc/self/fd/"):
            return self.files.lookup(text, follow=follow)
        number, _, rest = text.removeprefix("/proc/self/fd/").partition("/")
        file = current().descriptors[int(number)]
        inode = file.system.root if file.system is not None else file.inode
        assert inode is not None
        if not rest:
            return inode
        if rest not in inode.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return inode.entries[rest]

    def exists(self, path: str, *, follow: bool = True) -> bool:
        """Return whether there is a file at a path of the current process."""
        with contextlib.suppress(OSError):
            self.at(path, follow=follow)
            return True
        return False

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises OSError."""
        if path == "/proc/self/mountinfo":
            return self.files.mount_table().encode()
        if path in PROC:
            return PROC[path].encode()
        inode = self.files.lookup(path)
        if inode.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return inode.data

    def change(self, name: str, path: Any) -> None:
        """Note a call of the current process that changes the host. Raises OSError."""
        current().call()
        self.permit(name, path)

    def permit(self, name: str, path: Any) -> None:
        """Check that the current process may change this now. Raises OSError."""
        text = self.path(path)
        if text and not text.startswith(OWN) and not (name in {"mkdir", "chmod"} and text in MAY_MAKE):
            self.violated(f"the plugin changes {text} ({name})")
        if self.no_space and name in {"create", "write", "mkdir", "pwrite"}:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), text)

    # -- system calls of binderfs

    def ioctl(self, descriptor: int, request: int, argument: bytearray) -> None:
        """Create a binder device, or return the version of the protocol."""
        process = current()
        file = process.descriptors[descriptor]
        assert file.inode is not None
        if request == _VERSION:
            process.call()
            argument[:4] = struct.pack("i", 8)
            return
        assert request == _ADD
        self.change("add", file.path)
        if self.no_devices:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raw, _, _ = struct.unpack("256sII", argument)
        device = self.files.add_device(file.inode.system, raw.rstrip(b"\0").decode())
        argument[256:] = struct.pack("II", os.major(device.rdev), os.minor(device.rdev))

    def system_call(self, function: str, *arguments: Any) -> int:
        """Mount and unmount; see ``binderfs.call`` and ``detached``."""
        if function == "umount2":
            path = os.fsdecode(arguments[0])
            self.change("unmount", path)
            system = self.files.mounted(path)
            if system is None:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            self.files.detach(path)
            self.containers.unmounted(path, system)
            for inode in system.root.entries.values():
                self.containers.removed(inode)
            return 0
        assert function == "syscall", function
        number, *rest = arguments
        process = current()
        process.call()
        if number == 430:  # fsopen
            return process.opened(Descriptor(None))
        if number == 431:  # fsconfig
            context = process.descriptors[rest[0]]
            if rest[1] == 6:
                context.system = self.files.new_system("binder", context.path, context.limit)
                context.system.root.descriptors.append(context)
            elif rest[2] == b"max":
                context.limit = int(rest[3])
            else:
                context.path = rest[3].decode()
            return 0
        if number == 432:  # fsmount
            system = process.descriptors[rest[0]].system
            assert system is not None
            return process.opened(Descriptor(system.root, "/run/aosp-binderfs/phones/detached", system))
        assert number == 429  # move_mount
        if self.no_mounts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path, system = os.fsdecode(rest[3]), process.descriptors[rest[0]].system
        self.change("mount", path)
        assert system is not None
        self.files.attach(system, path)
        return 0

    # -- sockets

    def bind(self, path: str, listener: Any) -> Inode:
        """Create a socket that accepts connections. Raises OSError."""
        inode = self.files.add(path, stat.S_IFSOCK | 0o600)
        self.listeners[inode] = listener
        return inode

    def connected(self, path: str) -> Any:
        """Return what listens on a socket; None if nothing does. Raises FileNotFoundError."""
        return self.listeners.get(self.files.lookup(path))

    def close_listener(self, listener: Any) -> None:
        """Accept no more connections; the file of the socket stays."""
        self.listeners = {inode: each for inode, each in self.listeners.items() if each is not listener}
