"""What of the plugin's modules a simulation replaces: their names for the system, and three classes at its edge."""

import asyncio
import contextlib
import fnmatch
import functools
import glob
import importlib
import logging
import pkgutil
import random
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import aosp_plugin
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.provision.provisioner_socket import RemotePhoneProvisioner
from aosp_plugin.framework import file_events
from tests.simulation.api import SimulatedApiClient
from tests.simulation.files import Inode
from tests.simulation.host import Host
from tests.simulation.loop import wait
from tests.simulation.processes import CURRENT, SimulatedOs, SimulatedTempfile, SimulatedWorker, current, simulated_open
from tests.simulation.rpc import SimulatedGrpc

_LEFT = ("aosp_plugin.cli", "aosp_plugin.framework.apiserver", "aosp_plugin.__main__")
"""Modules that no simulation uses."""


class SimulatedTime:
    """The functions of time."""

    def __init__(self, host: Host) -> None:
        self.monotonic, self.time, self.perf_counter = host.monotonic, host.wall_time, host.monotonic
        self._host, self._used = host, 0.0

    def monotonic_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""
        return int(self.monotonic() * 1e9)

    def thread_time(self) -> float:
        """Return the processor time, of which each question takes some: scans pause in proportion."""
        self._used += self._host.call_time()
        return self._used


class SimulatedRandom:
    """A generator that depends on the seed."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def Random(self) -> random.Random:  # noqa: N802 - as in random
        """See random."""
        return random.Random(self._host.rng.random())  # noqa: S311 - a simulation


class _Watch:
    """A watched directory."""

    def __init__(self, host: Host, path: str, notify: Callable[[], None]) -> None:
        self._host, self._path, self._notify = host, path, notify
        self._inode: Inode = host.files.lookup(path)
        if not self._inode.is_directory:
            raise NotADirectoryError(20, "not a directory", path)
        self._inode.watchers.append(self._changed)
        self._process = current()

    def stale(self) -> bool:
        """See ``DirectoryWatch``."""
        with contextlib.suppress(OSError):
            return self._host.files.lookup(self._path) is not self._inode
        return True

    def stop(self) -> None:
        """See ``DirectoryWatch``."""
        with contextlib.suppress(ValueError):
            self._inode.watchers.remove(self._changed)

    def _changed(self) -> None:
        if not self._process.alive:
            self.stop()
        else:
            self._host.report(self._notify)


class _Inotify:
    """One inotify instance."""

    def __init__(self, host: Host) -> None:
        if host.no_descriptors:
            raise OSError(24, "Too many open files")
        self._host = host

    def watch(self, path: str, notify: Callable[[], None]) -> _Watch:
        """See ``Inotify``."""
        current().call()
        return _Watch(self._host, path, notify)

    def close(self) -> None:
        """See ``Inotify``."""


class _MountEvents:
    """Changes of the mount table."""

    def __init__(self, host: Host, changed: Callable[[], None]) -> None:
        self._host, self._notify, self._process = host, changed, current()
        host.files.mounts_changed.append(self._changed)

    def close(self) -> None:
        """See ``MountEvents``."""
        with contextlib.suppress(ValueError):
            self._host.files.mounts_changed.remove(self._changed)

    def _changed(self) -> None:
        if not self._process.alive:
            self.close()
        else:
            self._host.report(self._notify)


class _Log(logging.Handler):
    """Writes the plugin's log into that of the run."""

    def __init__(self, host: Host) -> None:
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


class _Glob:
    """The search for files of one directory below another one."""

    escape = staticmethod(glob.escape)

    def __init__(self, host: Host) -> None:
        self._host = host

    def glob(self, pattern: str) -> list[str]:
        """See ``glob``."""
        current().call()
        directory, _, names = pattern.rsplit("/", 2)
        if not self._host.files.exists(directory):
            return []
        below = self._host.files.lookup(directory).entries.items()
        paths = [f"{directory}/{parent}/{name}" for parent, inode in below for name in inode.entries]
        return [path for path in paths if fnmatch.fnmatch(path, f"{directory}/*/{names}")]


@functools.cache
def modules() -> list[types.ModuleType]:
    """Return the modules of the plugin that a simulation runs, all of them imported."""
    for info in pkgutil.walk_packages(aosp_plugin.__path__, "aosp_plugin."):
        if not info.name.startswith(_LEFT):
            importlib.import_module(info.name)
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("aosp_plugin.") and not name.startswith(_LEFT)
    ]


@contextlib.contextmanager
def simulated(host: Host) -> Iterator[None]:
    """Replace the system of the plugin's modules by a host inside the context."""
    system = SimulatedOs(host)
    replaced: dict[str, Any] = {
        "os": system,
        "time": SimulatedTime(host),
        "glob": _Glob(host),
        "tempfile": SimulatedTempfile(host, system),
        "grpc": SimulatedGrpc(host),
        "random": SimulatedRandom(host),
        "fcntl": types.SimpleNamespace(ioctl=host.ioctl, flock=system.flock, LOCK_SH=1, LOCK_EX=2, LOCK_NB=4),
        "Worker": lambda name: SimulatedWorker(host, name),
    }
    with contextlib.ExitStack() as stack:
        for module in modules():
            for name, value in replaced.items():
                if name in vars(module) and module.__name__ != "aosp_plugin.framework.worker":
                    _replace(stack, module, name, value)
            if module.__name__.split(".")[1] in {"binder", "config", "framework", "daemon"}:
                _replace(stack, module, "open", simulated_open(host))
            _replace_clocks(module, SimulatedTime(host), stack)
        for name in ("worker", "apiserver.client"):
            module = importlib.import_module(f"aosp_plugin.framework.{name}")
            _replace(stack, module, "time", SimulatedTime(host))
        for owner, name, value in (
            (binderfs, "call", host.system_call),
            (RemotePhoneProvisioner, "_exchange", lambda _, request: current().request(request)),
            (file_events, "Inotify", lambda _loop: _Inotify(host)),
            (file_events, "MountEvents", lambda _loop, changed: _MountEvents(host, changed)),
            (importlib.import_module("aosp_plugin.framework.sockets"), "listener", _listener(host)),
            (importlib.import_module("aosp_plugin.framework.dra.kubelet_service"), "listener", _listener(host)),
            (importlib.import_module("aosp_plugin.framework.service.process"), "stop_on_signals", host.stop_on_signals),
            (importlib.import_module("aosp_plugin.framework.service.logs"), "set_up", lambda *_: None),
            (
                importlib.import_module("aosp_plugin.daemon.assembly"),
                "in_cluster",
                _directory,
            ),
            (importlib.import_module("aosp_plugin.framework.dra.driver"), "ApiClient", _client(host)),
        ):
            _replace(stack, owner, name, value)
        _replace(stack, asyncio, "wait", wait)
        stack.enter_context(warnings.catch_warnings())  # of coroutines that a killed process has not begun
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
        log, root = _Log(host), logging.getLogger("aosp_plugin")
        level, propagates = root.level, root.propagate
        root.addHandler(log)
        root.setLevel(logging.INFO)
        root.propagate = False
        stack.callback(root.removeHandler, log)
        stack.callback(root.setLevel, level)
        stack.callback(setattr, root, "propagate", propagates)
        yield


def _replace(stack: contextlib.ExitStack, owner: object, name: str, value: object) -> None:
    """Set an attribute of a module or a class until the stack ends, where it may hide a built-in function."""
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)


def _directory(directory: str, **_: object) -> str:
    return directory


def _replace_clocks(module: types.ModuleType, simulated_time: SimulatedTime, stack: contextlib.ExitStack) -> None:
    """Replace the clocks that are defaults of arguments."""
    clocks = {time.monotonic: simulated_time.monotonic, time.time: simulated_time.time}
    clocks[time.monotonic_ns] = simulated_time.monotonic_ns
    owners = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
    functions = [*owners, *(method for owner in owners if isinstance(owner, type) for method in vars(owner).values())]
    for function in functions:
        if not isinstance(function, types.FunctionType):
            continue
        by_name, defaults = function.__kwdefaults__ or {}, function.__defaults__ or ()
        if any(isinstance(value, types.BuiltinFunctionType) and value in clocks for value in by_name.values()):
            stack.callback(setattr, function, "__kwdefaults__", by_name)
            function.__kwdefaults__ = {
                name: clocks.get(value, value) if callable(value) else value for name, value in by_name.items()
            }
        if any(isinstance(value, types.BuiltinFunctionType) and value in clocks for value in defaults):
            stack.callback(setattr, function, "__defaults__", defaults)
            function.__defaults__ = tuple(clocks.get(value, value) if callable(value) else value for value in defaults)


def _client(host: Host) -> Callable[..., Any]:
    return lambda _credentials, *, observer, user_agent: SimulatedApiClient(host.api, observer)  # noqa: ARG005 - as there


def _listener(host: Host) -> Callable[[str], int | None]:
    def listener(path: str) -> int | None:
        current().call()
        try:
            found = host.connected(path)
        except FileNotFoundError:
            return None
        return None if found is None else getattr(found, "pid", 0)

    return listener
