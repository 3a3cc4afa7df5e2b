"""Simulated processes: their host calls, their descriptors, their worker threads, and their end at any of these.

A call of a process that has been killed has no effect: it raises ``ProcessKilledError``, as every call after it.
"""

import asyncio
import collections
import contextlib
import contextvars
import errno
import fcntl
import io
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from greenlet import getcurrent, greenlet

from tests.binder_driver import ALL_MINORS
from tests.simulation.files import FileSystem, Inode, Status
from tests.simulation.loader import PACKAGE_DIRECTORY

if TYPE_CHECKING:
    from tests.simulation.host import Host

CURRENT: "ContextVar[Process | None]" = ContextVar("simulated process", default=None)
"""The process that runs now; None for the world around it."""


_INVALID = os.strerror(errno.EINVAL)


class ProcessKilledError(BaseException):
    """The process was killed: nothing that it does has an effect any more."""


class Descriptor:
    """An open file of a process."""

    def __init__(self, inode: Inode | None, path: str = "", system: FileSystem | None = None) -> None:
        self.inode, self.path, self.system = inode, path, system
        self.limit = ALL_MINORS
        """The option ``max=`` of a binderfs that is to be created."""
        self.is_open, self.shares = True, False
        if inode is not None and inode.system.kind == "binder":
            inode.descriptors = [*(each for each in inode.descriptors if each.is_open), self]


class Process:
    """A process of the plugin."""

    def __init__(self, host: "Host", pid: int) -> None:
        self.host, self.pid = host, pid
        self.alive = True
        self.calls = 0
        """Host calls so far."""
        self.killed_at_call: int | None = None
        self._next_pause = host.calls_until_pause()
        self.descriptors: dict[int, Descriptor] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.at_death: list[Callable[[], None]] = []
        self.request: Callable[[dict[str, Any]], dict[str, Any]]
        """Returns the answer of its provisioner to a request. Raises ProvisionerError."""
        self.successor: Process | None = None
        """What it is since it has executed its program again; it has the same ID."""
        self._on_stop: Callable[[], None] | None = None
        self._on_reload: Callable[[], None] | None = None
        self._is_to_stop = self._is_to_reload = False
        self._next_descriptor = 3

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function as this process."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        return context.run(function)

    def handle_signals(self, stop: Callable[[], None], reload: Callable[[], None] | None) -> Callable[[], None]:
        """Call these functions on SIGTERM and SIGHUP; one that came before was blocked until now.

        Return a function that executes the program again.
        """
        self._on_stop, self._on_reload = stop, reload
        self._deliver()
        return self._execute

    def _deliver(self) -> None:
        if self.alive and self._is_to_stop and self._on_stop is not None:
            self.run(self._on_stop)
        if self.alive and self._is_to_reload and self._on_reload is not None:
            self._is_to_reload = False
            self.run(self._on_reload)

    def stop(self) -> None:
        """Send SIGTERM."""
        now = self.now
        now._is_to_stop = True
        now._deliver()

    def reload(self) -> None:
        """Send SIGHUP."""
        now = self.now
        now._is_to_reload = True
        now._deliver()

    @property
    def now(self) -> "Process":
        """What it is now."""
        return self if self.successor is None else self.successor.now

    def _execute(self) -> None:
        """Execute the program again, unless it is to stop: the process keeps its ID, and nothing else."""
        self.call()
        if not self._is_to_stop:
            self.host.log("plugin executes its program again", pid=self.pid)
            self.kill()
            self.successor = Process(self.host, self.pid)
            raise ProcessKilledError

    def kill(self) -> None:
        """End the process at once: sockets and files are closed, locks released, and nothing else is done."""
        if self.successor is not None:
            self.successor.kill()
        if not self.alive:
            return
        self.alive = False
        self.host.log("process killed", pid=self.pid, call=self.calls)
        for descriptor in self.descriptors.values():
            descriptor.is_open = False
        self.descriptors.clear()
        for function in self.at_death:
            function()
        for task in [*self.tasks]:
            task.cancel()

    def call(self) -> None:
        """Count a host call. Others may run before it, if a worker makes it. Raises ProcessKilledError."""
        self.calls += 1
        if self.killed_at_call is not None and self.calls >= self.killed_at_call:
            self.kill()
        if self.calls >= self._next_pause:
            self._next_pause += self.host.calls_until_pause()
            self.pause()
        if not self.alive:
            raise ProcessKilledError

    @staticmethod
    def pause() -> None:
        """Let others run, if a worker of the process runs now: its event loop makes few host calls."""
        if (parent := getcurrent().parent) is not None:
            parent.switch()

    def opened(self, descriptor: Descriptor) -> int:
        """Return the number of a new descriptor. Raises OSError if there are no more."""
        if self.host.no_descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._next_descriptor += 1
        self.descriptors[self._next_descriptor] = descriptor
        return self._next_descriptor


def current() -> Process:
    """Return the process that runs now."""
    process = CURRENT.get()
    assert process is not None, "a host call outside any process"
    return process


class Entry:
    """An entry of a directory, as os.scandir yields it."""

    def __init__(self, directory: str, name: str, inode: Inode) -> None:
        self.name = name
        self.path = f"{directory}/{name}"
        self._inode = inode

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as in os
        """Whether it is a directory."""
        return self._inode.is_directory

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as in os
        """Whether it is a regular file."""
        return stat.S_ISREG(self._inode.mode)

    def stat(self, *, follow_symlinks: bool = True) -> Status:  # noqa: ARG002 - as in os
        """Return its status."""
        return self._inode.status()


class System:
    """What simulated modules, threads and sockets have in common: the host of the simulation that runs."""

    host: ClassVar["Host"]


class SimulatedPath(System):
    """The functions of os.path; those that use files use the simulated ones."""

    def __getattr__(self, name: str) -> Any:
        assert name in {"join", "dirname", "basename", "split", "normpath", "splitext", "samestat"}, name
        function = self.__dict__[name] = getattr(posixpath, name)
        return function

    def lexists(self, path: str) -> bool:
        """See os.path."""
        current().call()
        return self.host.exists(path, follow=False)

    def exists(self, path: str) -> bool:
        """See os.path."""
        current().call()
        return self.host.exists(path)

    def samefile(self, first: str, second: str) -> bool:
        """See os.path."""
        current().call()
        return self.host.at(first) is self.host.at(second)

    def isdir(self, path: str) -> bool:
        """See os.path."""
        return self.exists(path) and self.host.at(path).is_directory

    def realpath(self, path: str) -> str:
        """See os.path."""
        current().call()
        return self.host.files.real_path(path)


class SimulatedOs(System):
    """The functions of os that the plugin uses. Pure ones are the real ones."""

    def __init__(self) -> None:
        self.path = SimulatedPath()
        self.environ = {"NODE_NAME": "node-1"}

    def __getattr__(self, name: str) -> Any:
        pure = {"strerror", "fsencode", "fsdecode", "major", "minor", "makedev", "uname", "stat_result", "umask"}
        assert name in pure or name.startswith("O_") or name in {"W_OK", "X_OK", "R_OK"}, name
        value = self.__dict__[name] = getattr(os, name)
        return value

    def getpid(self) -> int:
        """See os."""
        return current().pid

    def getuid(self) -> int:
        """See os."""
        return 0

    geteuid = getuid

    def urandom(self, size: int) -> bytes:
        """See os."""
        return self.host.rng.randbytes(size)

    def lstat(self, path: str) -> Status:
        """See os."""
        current().call()
        return self.host.at(path, follow=False).status()

    def stat(self, path: str) -> Status:
        """See os."""
        current().call()
        going = self.host.files.going.get(path)
        if going is not None and self.host.rng.random() < 0.5 and not self.host.exists(path):
            return going.status()._replace(st_nlink=0)
        self.host.files.going.pop(path, None)
        return self.host.at(path).status()

    def fstat(self, descriptor: int) -> Status:
        """See os."""
        process = current()
        process.call()
        inode = process.descriptors[descriptor].inode
        assert inode is not None
        return inode.status()

    def access(self, path: str, _mode: int) -> bool:
        """See os."""
        current().call()
        return self.host.exists(path)

    def listdir(self, path: str) -> list[str]:
        """See os. The directories of the package are on each host."""
        if path.startswith(PACKAGE_DIRECTORY):
            return os.listdir(path)
        current().call()
        self.host.files.going.clear()
        inode = self.host.at(path)
        if not inode.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return [*inode.entries]

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[Entry]]:
        """See os."""
        names = self.listdir(path)
        inode = self.host.at(path)
        yield iter([Entry(path, name, inode.entries[name]) for name in names if name in inode.entries])

    def readlink(self, path: str) -> str:
        """See os."""
        current().call()
        if path in {"/proc/self/ns/mnt", "/proc/1/ns/mnt"}:
            return "mnt:[1]"
        inode = self.host.at(path, follow=False)
        if not stat.S_ISLNK(inode.mode):
            raise OSError(errno.EINVAL, _INVALID, path)
        return inode.target

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """See os."""
        current().call()
        if self.host.exists(path, follow=False):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.host.permit("mkdir", path)
        self.host.files.add(path, stat.S_IFDIR | mode)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as in os
        """See os."""
        try:
            self.lstat(path)
        except FileNotFoundError:
            self.host.change("mkdir", path)
            self.host.files.make_directories(path)

    def rmdir(self, path: str) -> None:
        """See os."""
        self.host.change("rmdir", path)
        self.host.files.remove_directory(path)

    def unlink(self, path: str) -> None:
        """See os."""
        self.host.change("unlink", path)
        self.host.containers.removed(self.host.files.remove(self.host.path(path)))

    def rename(self, source: str, target: str) -> None:
        """See os."""
        self.host.change("rename", target)
        self.host.containers.removed(self.host.files.rename(self.host.path(source), self.host.path(target)))

    def symlink(self, target: str, path: str) -> None:
        """See os."""
        self.host.change("symlink", path)
        self.host.files.add(path, stat.S_IFLNK | 0o777).target = target

    def chmod(self, path: str, mode: int) -> None:
        """See os."""
        self.host.change("chmod", path)
        inode = self.host.at(path)
        inode.mode = stat.S_IFMT(inode.mode) | mode

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """See os."""
        process = current()
        process.call()
        if flags & os.O_CREAT and not self.host.exists(path, follow=False):
            self.host.permit("create", path)
            inode = self.host.files.add(path, stat.S_IFREG | mode)
        else:
            if flags & os.O_CREAT and flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            inode = self.host.at(path, follow=not flags & os.O_NOFOLLOW)
            if stat.S_ISLNK(inode.mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return process.opened(Descriptor(inode, self.host.path(path)))

    def close(self, descriptor: int) -> None:
        """See os."""
        process = current()
        if (closed := process.descriptors.pop(descriptor, None)) is not None:
            closed.is_open = False
        process.call()

    def flock(self, descriptor: int, operation: int) -> None:
        """See fcntl."""
        process = current()
        process.call()
        own = process.descriptors[descriptor]
        assert own.inode is not None
        shared = bool(operation & fcntl.LOCK_SH)
        while others := [each for each in own.inode.locks if each is not own and each.is_open]:
            if shared and all(each.shares for each in others):
                break
            if operation & fcntl.LOCK_NB:
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
            process.pause()
            if not process.alive:
                raise ProcessKilledError
        own.shares = shared
        own.inode.locks = [*others, own]

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        """See os."""
        process = current()
        process.call()
        inode = process.descriptors[descriptor].inode
        assert inode is not None
        return inode.data[offset : offset + size]

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        """See os."""
        process = current()
        self.host.change("pwrite", process.descriptors[descriptor].path)
        inode = process.descriptors[descriptor].inode
        assert inode is not None
        inode.data = inode.data[:offset] + data + inode.data[offset + len(data) :]
        return len(data)

    def ftruncate(self, descriptor: int, length: int) -> None:
        """See os."""
        process = current()
        self.host.change("ftruncate", process.descriptors[descriptor].path)
        inode = process.descriptors[descriptor].inode
        assert inode is not None
        inode.data = inode.data[:length]

    def fsync(self, _descriptor: int) -> None:
        """See os."""
        current().call()

    def fchmod(self, descriptor: int, mode: int) -> None:
        """See os."""
        process = current()
        process.call()
        inode = process.descriptors[descriptor].inode
        assert inode is not None
        inode.mode = stat.S_IFMT(inode.mode) | mode

    def eventfd(self, _value: int) -> int:
        """See os."""
        process = current()
        process.call()
        return process.opened(Descriptor(None))


class _Writer(io.BytesIO, System):
    """A file that is written: its content is on the host when it is flushed."""

    def __init__(self, descriptor: int, process: Process) -> None:
        super().__init__()
        self._descriptor, self._process = descriptor, process

    def fileno(self) -> int:
        return self._descriptor

    def flush(self) -> None:
        if self._descriptor in self._process.descriptors:
            file = self._process.descriptors[self._descriptor]
            self.host.change("write", file.path)
            assert file.inode is not None
            file.inode.data, file.inode.changed = self.getvalue(), self.host.files.now()

    def close(self) -> None:
        self._process.descriptors.pop(self._descriptor, None)
        super().close()


def simulated_open(path: Any, mode: str = "r", **_options: Any) -> Any:
    """Open a file, as the built-in ``open``."""
    process, host = current(), System.host
    if isinstance(path, int):
        return _Writer(path, process)
    process.call()
    if host.no_descriptors:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
    data = host.read(path)
    return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode())


class SimulatedTempfile(System):
    """What the plugin uses of tempfile."""

    def __init__(self, system: SimulatedOs) -> None:
        self._os = system

    def mkstemp(self, suffix: str, prefix: str, directory: str) -> tuple[int, str]:
        """See tempfile."""
        name = "".join(self.host.rng.choices("abcdefghijklmnopqrstuvwxyz0123456789_", k=8))
        path = f"{directory}/{prefix}{name}{suffix}"
        return self._os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), path


class SimulatedWorker(System):
    """A worker thread: others run before any of its host calls, as the seed decides. Calls take simulated time."""

    timeout_error: type[Exception]

    def __init__(self, name: str) -> None:
        self.name = name
        self.current: tuple[str, float] | None = None
        self._queue: collections.deque[tuple[Callable[[], Any], str, Any, contextvars.Context]] = collections.deque()
        self._busy = False
        self._thread: greenlet | None = None
        """The call that has started and not ended."""
        self._process: Process | None = None

    async def run(self, function: Callable[[], Any], timeout: float | None = None, *, label: str = "call") -> Any:
        """See ``aosp_plugin.framework.worker.Worker``."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def expire() -> None:
            running = self.current
            waited = "" if running is None or running[0] == label else f" because of a {running[0]} that has not ended"
            if not future.done():
                future.set_exception(self.timeout_error(f"{label} timed out after {timeout:g} s{waited}"))

        timer = None if timeout is None else loop.call_later(timeout, expire)
        self._enqueue(function, label, future)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()

    def running(self) -> tuple[str, float] | None:
        """See ``Worker``."""
        return None if self.current is None else (self.current[0], self.host.monotonic() - self.current[1])

    def close(self, last: Callable[[], None] | None = None) -> None:
        """See ``Worker``."""
        if last is not None:
            self._enqueue(last, "close", None)

    def _enqueue(self, function: Callable[[], Any], label: str, future: Any) -> None:
        self._queue.append((function, label, future, contextvars.copy_context()))
        if not self._busy:
            self._busy = True
            self._wait(self.host.call_time())

    def _wait(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._step)

    def _step(self) -> None:
        """Begin the next call, or go on with the one that has started, until others are to run, or it ends."""
        self._thread = self._begun() if self._thread is None else self._thread
        if self._thread is None:
            self._busy = False
        elif self._process is not None and not self._process.alive:
            self._queue.clear()
            if self._thread:  # it has begun
                self._thread.throw(ProcessKilledError)
            self._thread = None
        elif self.host.hanging:
            self.host.hung_at = self.host.monotonic()
            self._wait(0.25)
        else:
            self._thread.switch()
            if self._thread.dead:
                self._thread = None
            self._wait(self.host.call_time())

    def _begun(self) -> greenlet | None:
        """Return the next call; None if there is none."""
        while self._queue:
            function, label, future, context = self._queue.popleft()
            if future is None or not future.done():  # otherwise, nobody waits for it any more
                self.current, self._process = (label, self.host.monotonic()), context.get(CURRENT)
                return greenlet(partial(self._execute, function, future, context))
        return None

    def _execute(self, function: Callable[[], Any], future: Any, context: contextvars.Context) -> None:
        try:
            report = partial(future.set_result if future else bool, context.run(function))
        except ProcessKilledError:
            return
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            report = partial(future.set_exception if future else bool, error)
        self.current = None
        if future is not None and not future.done():
            report()
