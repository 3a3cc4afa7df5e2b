"""The same steps on a simulated binderfs as on a real one: they run on a real kernel outside of a simulation."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

from tests.simulation.host import OWN, Host
from tests.simulation.processes import CURRENT, Process
from tests.simulation.system import LOADER, simulated
from tests.simulation.traces import Steps

with LOADER.importing():
    from aosp_plugin.binder.driver import binderfs, host


def simulated_binderfs_steps() -> Steps:
    """Return the steps of a simulated binderfs."""
    node = Host(0, lambda: 0.0)
    node.files.make_directories(OWN[0])
    token = CURRENT.set(Process(node, 1))
    try:
        with simulated(node):
            return binderfs_steps(OWN[0], binderfs, host)
    finally:
        CURRENT.reset(token)


def binderfs_steps(parent: str, binderfs: ModuleType, host: ModuleType) -> Steps:
    """Return what each call has returned, in a directory below ``parent`` that is removed again.

    ``binderfs`` and ``host`` are modules of the plugin, or of its copy, whose system is compared.
    """
    calls = _Calls(parent, binderfs, host)
    calls.make()
    calls.change()
    calls.number()
    calls.limit()
    calls.cover()
    calls.end()
    return calls.steps


class _Calls:
    """The calls, in their order."""

    def __init__(self, parent: str, binderfs: ModuleType, host: ModuleType) -> None:
        self.steps: Steps = []
        self._parent, self._directory = parent, f"{parent}/compared"
        self._one, self._two = f"{self._directory}/one", f"{self._directory}/two"
        self._binderfs, self._host, self._os = binderfs, host, binderfs.os
        self._of_kernel: set[str] = set()

    def make(self) -> None:
        """Mount a binderfs with a device."""
        self._step("make the directory", partial(self._os.mkdir, self._directory))
        self._step("nothing is mounted", self._source)
        with self._binderfs.create_mount(self._directory, "first") as descriptor:
            inside = f"/proc/self/fd/{descriptor}"
            self._of_kernel = {*self._binderfs.device_names(inside)}
            self._step("add a device", lambda: self._binderfs.add_device(inside, "one") > 0)
            self._step("add it again", lambda: self._binderfs.add_device(inside, "one"))
            self._step("it is there", partial(self._added, inside))
            self._step("nothing is mounted yet", self._source)
            self._step("attach", partial(self._binderfs.attach, descriptor, self._directory))
        self._step("it is mounted", self._source)
        self._step("the device is there", self._added)

    def change(self) -> None:
        """Change what is in it."""
        control = f"{self._directory}/{self._binderfs.CONTROL_NAME}"
        self._step("it is a character device", lambda: stat.S_ISCHR(self._os.lstat(self._one).st_mode))
        self._step("its mode", partial(self._mode, self._one))
        places = (self._one, control, self._directory)
        self._step("its file system", lambda: len({self._os.lstat(path).st_dev for path in places}))
        self._step(
            "the control file stays",
            partial(self._binderfs.remove_device, self._directory, self._binderfs.CONTROL_NAME),
        )
        self._step("no directory is made", partial(self._os.mkdir, f"{self._directory}/d"))
        flags = os.O_RDWR | os.O_CREAT
        self._step("no file is made", partial(self._os.open, f"{self._directory}/file", flags))
        self._step("no link is made", partial(self._os.symlink, "one", f"{self._directory}/link"))
        self._step("a device does not move out", partial(self._os.rename, self._one, f"{self._parent}/one"))
        self._step("add two", lambda: self._binderfs.add_device(self._directory, "two") > 0)
        number = self._os.lstat(self._two).st_rdev
        self._step("rename it over the other", partial(self._os.rename, self._two, self._one))
        self._step("one is left", self._added)
        self._step("with the number of two", lambda: self._os.lstat(self._one).st_rdev == number)
        self._step("change its mode", partial(self._os.chmod, self._one, 0o666))
        self._step("its new mode", partial(self._mode, self._one))

    def number(self) -> None:
        """Look at numbers and names of devices."""
        status = self._os.lstat(self._one)
        self._step("its inode follows from its number", lambda: status.st_ino - os.minor(status.st_rdev))
        self._step("the inode of the control file", lambda: self._os.lstat(f"{self._directory}/binder-control").st_ino)
        number = self._binderfs.add_device(self._directory, "three")
        self._step("remove it", partial(self._binderfs.remove_device, self._directory, "three"))
        self._step("the next has its number", lambda: self._binderfs.add_device(self._directory, "four") == number)
        self._step("remove that one", partial(self._binderfs.remove_device, self._directory, "four"))
        for name in ("", ".", "..", "a/b"):
            self._step(f"add {name!r}", partial(self._binderfs.add_device, self._directory, name))

    def limit(self) -> None:
        """Mount a binderfs with room for one device, over the first."""
        add = partial(self._binderfs.add_device, self._directory)
        with self._with_limit(len(self._of_kernel) + 1):
            self._step("add one", lambda: add("one") > 0)
            self._step("it is full", partial(add, "two"))
            self._step("it is full for a name in use", partial(add, "one"))
            descriptor = self._os.open(self._one, os.O_RDONLY)
            self._step("remove the open device", partial(self._binderfs.remove_device, self._directory, "one"))
            self._step("it is still full", partial(add, "two"))
            self._os.close(descriptor)
            self._step("it is not full any more", lambda: add("two") > 0)

    @contextlib.contextmanager
    def _with_limit(self, limit: int) -> Iterator[None]:
        """Mount a binderfs with ``max=``, by the system calls of ``create_mount``."""
        call = self._binderfs.call
        context = call("syscall", 430, b"binder", 1)
        call("syscall", 431, context, 1, b"max", b"%d" % limit, 0)
        call("syscall", 431, context, 6, None, None, 0)
        mount = call("syscall", 432, context, 1, 0)
        self._binderfs.attach(mount, self._directory)
        self._os.close(mount)
        self._os.close(context)
        yield
        self._binderfs.unmount(self._directory)

    def cover(self) -> None:
        """Mount another binderfs over it."""
        before = self._os.lstat(self._directory).st_dev
        with self._binderfs.create_mount(self._directory, "second") as descriptor:
            self._step("mount another one", partial(self._binderfs.attach, descriptor, self._directory))
        self._step("it covers the first", self._source)
        self._step("on another file system", lambda: self._os.lstat(self._directory).st_dev != before)
        self._step("it is empty", self._added)
        self._step("a mount point is not removed", partial(self._os.rmdir, self._directory))
        self._step("unmount it", partial(self._binderfs.unmount, self._directory))
        self._step("the first is visible", self._source)
        self._step("with its device", self._added)

    def end(self) -> None:
        """Remove everything."""
        self._step("remove the device", partial(self._binderfs.remove_device, self._directory, "one"))
        self._step("remove it again", partial(self._binderfs.remove_device, self._directory, "one"))
        self._step("unmount the first", partial(self._binderfs.unmount, self._directory))
        self._step("unmount nothing", partial(self._binderfs.unmount, self._directory))
        self._step("add a device to nothing", lambda: self._binderfs.add_device(self._directory, "one"))
        self._step("remove the directory", partial(self._os.rmdir, self._directory))

    def _step(self, name: str, call: Callable[[], object]) -> None:
        try:
            self.steps.append((name, call()))
        except OSError as error:
            self.steps.append((name, os.strerror(error.errno or 0)))
        except self._host.HostError as error:
            cause = error.__cause__
            text = os.strerror(cause.errno or 0) if isinstance(cause, OSError) else ""
            self.steps.append((name, f"{type(error).__name__}: {text}"))

    def _added(self, directory: str = "") -> list[str]:
        return sorted({*self._binderfs.device_names(directory or self._directory)} - self._of_kernel)

    def _source(self) -> str:
        place = self._directory, self._os.lstat(self._directory).st_dev
        table = self._host.read_mounts()
        return next((mount.source for mount in table if (mount.directory, mount.st_dev) == place), "")

    def _mode(self, path: str) -> int:
        return stat.S_IMODE(self._os.lstat(path).st_mode)
