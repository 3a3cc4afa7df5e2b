"""The system of a simulation, which the copy of the plugin gets instead of the real one; see ``loader``."""

import asyncio
import contextlib
import logging
import random
import types
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tests.simulation import outside
from tests.simulation.files import Inode
from tests.simulation.loader import COPY, Loader
from tests.simulation.loop import wait
from tests.simulation.processes import (
    CURRENT,
    SimulatedOs,
    SimulatedTempfile,
    SimulatedWorker,
    System,
    current,
    simulated_open,
)
from tests.simulation.rpc import SimulatedGrpc

if TYPE_CHECKING:
    from tests.simulation.host import Host


class SimulatedTime(System):
    """The functions of time."""

    def monotonic(self) -> float:
        """See time."""
        return self.host.monotonic()

    perf_counter = monotonic

    def monotonic_ns(self) -> int:
        """See time."""
        return int(self.host.monotonic() * 1e9)

    def time(self) -> float:
        """See time."""
        return self.host.wall_time()

    def thread_time(self) -> float:
        """See time."""
        return self.host.thread_time()


class SimulatedRandom(random.Random):
    """A generator that depends on the seed."""

    def __init__(self) -> None:
        super().__init__(System.host.rng.random())


class _Watch(System):
    """A watched directory."""

    def __init__(self, path: str, notify: Callable[[], None]) -> None:
        self._path, self._notify = path, notify
        self._inode: Inode = self.host.files.lookup(path)
        if not self._inode.is_directory:
            raise NotADirectoryError(20, "not a directory", path)
        self._inode.watchers.append(self._changed)
        self._process = current()

    def stale(self) -> bool:
        """See ``DirectoryWatch``."""
        with contextlib.suppress(OSError):
            return self.host.files.lookup(self._path) is not self._inode
        return True

    def stop(self) -> None:
        """See ``DirectoryWatch``."""
        with contextlib.suppress(ValueError):
            self._inode.watchers.remove(self._changed)

    def _changed(self) -> None:
        if not self._process.alive:
            self.stop()
        else:
            self.host.report(self._notify)


class _Inotify(System):
    """One inotify instance."""

    def __init__(self, _loop: object) -> None:
        if self.host.no_descriptors:
            raise OSError(24, "Too many open files")

    def watch(self, path: str, notify: Callable[[], None]) -> _Watch:
        """See ``Inotify``."""
        current().call()
        return _Watch(path, notify)

    def close(self) -> None:
        """See ``Inotify``."""


class _MountEvents(System):
    """Changes of the mount table."""

    def __init__(self, _loop: object, changed: Callable[[], None]) -> None:
        self._notify, self._process = changed, current()
        self.host.files.mounts_changed.append(self._changed)

    def close(self) -> None:
        """See ``MountEvents``."""
        with contextlib.suppress(ValueError):
            self.host.files.mounts_changed.remove(self._changed)

    def _changed(self) -> None:
        if not self._process.alive:
            self.close()
        else:
            self.host.report(self._notify)


class _Log(logging.Handler):
    """Writes the plugin's log into that of the run."""

    def __init__(self, host: "Host") -> None:
        super().__init__(logging.INFO)
        self._host = host

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get()
        if process is None or process.alive:
            error = getattr(record, "error", "") or getattr(record, "reason", "")
            text = f"{record.getMessage()}: {error}" if error else record.getMessage()
            self._host.log(f"{record.levelname.lower()}: {text}".replace("\n", " "))
            if record.exc_info and record.exc_info[1] is not None:
                self._host.violated(f"unexpected error: {record.exc_info[1]!r}")


class _Requests:
    """The connection to the provisioner."""

    @staticmethod
    def _exchange(request: dict[str, Any]) -> dict[str, Any]:
        return current().request(request)


def _of_host(name: str) -> Callable[..., Any]:
    """Return a function that calls a method of the host that is simulated then."""

    def call(*arguments: Any) -> Any:
        return getattr(System.host, name)(*arguments)

    return call


def _listener(path: str) -> int | None:
    current().call()
    try:
        found = System.host.connected(path)
    except FileNotFoundError:
        return None
    return None if found is None else getattr(found, "pid", 0)


def _api_client(client: Any) -> dict[str, Any]:
    from tests.simulation.api import SimulatedRequests  # noqa: PLC0415 - it imports modules of the copy

    attributes = {"limits": client.DEFAULT_LIMITS}
    return {"ApiClient": type("ApiClient", (SimulatedRequests, client.ApiClient), attributes)}


_OS = SimulatedOs()

LOADER = Loader(
    modules={
        "fcntl": types.SimpleNamespace(ioctl=_of_host("ioctl"), flock=_OS.flock, LOCK_SH=1, LOCK_EX=2, LOCK_NB=4),
        "grpc": SimulatedGrpc(),
        "os": _OS,
        "random": types.SimpleNamespace(Random=SimulatedRandom),
        "tempfile": SimulatedTempfile(_OS),
        "time": SimulatedTime(),
        **outside.MODULES,
    },
    missing=("glob", "mmap", "multiprocessing", "shutil", "subprocess"),
    functions={"open": simulated_open},
    edges={
        "binder.driver.binderfs": lambda _: {"call": _of_host("system_call")},
        "binder.provision.provisioner_socket": lambda module: {
            "RemotePhoneProvisioner": type("RemotePhoneProvisioner", (_Requests, module.RemotePhoneProvisioner), {})
        },
        "framework.apiserver.client": _api_client,
        "framework.apiserver.credentials": lambda _: {"in_cluster": lambda directory, **_: directory},
        "framework.file_events": lambda _: {"MountEvents": _MountEvents},
        "framework.inotify": lambda _: {"Inotify": _Inotify},
        "framework.service.logs": lambda _: {"set_up": lambda *_: None},
        "framework.service.process": lambda _: {"stop_on_signals": _of_host("stop_on_signals")},
        "framework.sockets": lambda _: {"listener": _listener},
        "framework.worker": lambda module: {
            "Worker": type("Worker", (SimulatedWorker,), {"timeout_error": module.WorkerTimeoutError})
        },
        **outside.EDGES,
    },
)
"""Functions and classes are replaced where the plugin reaches the kernel or another process without these modules."""


@contextlib.contextmanager
def simulated(host: "Host") -> Iterator[None]:
    """Let the copy of the plugin run on a host inside the context."""
    System.host = host
    _OS.environ.clear()
    _OS.environ["NODE_NAME"] = "node-1"
    log, root = _Log(host), logging.getLogger(COPY)
    root.setLevel(logging.INFO)
    root.propagate = False
    root.addHandler(log)
    original, asyncio.wait = asyncio.wait, wait  # a faster one
    try:
        with warnings.catch_warnings():  # of coroutines that a killed process has not begun
            warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
            yield
    finally:
        asyncio.wait = original
        root.removeHandler(log)
