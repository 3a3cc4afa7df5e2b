"""A module of the plugin gets the simulated system however it imports it, without being known to the simulation."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.simulation.host import OWN, Host
from tests.simulation.loader import COPY
from tests.simulation.system import simulated

FILE = f"{OWN[0]}/file"

NEW = f"""
import os
import os as system
import os.path
import os.path as paths
import time
from os import path, readlink as read_link
from os.path import lexists
from time import monotonic as now

import aosp_plugin.framework.worker as workers
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.framework import worker
from aosp_plugin.framework.worker import Worker as Thread


class Times:
    clock = staticmethod(time.time)

    def read(self, clock=time.monotonic, *, other=now):
        return clock(), other(), self.clock()


def in_function():
    import fcntl
    from os import listdir
    from aosp_plugin.new_neighbor import content

    return listdir({OWN[0]!r}), content(), fcntl.LOCK_NB


def links():
    return [each({FILE!r}) for each in (os.readlink, system.readlink, read_link)]


def existence():
    return [each({FILE!r}) for each in (os.path.lexists, paths.lexists, path.lexists, lexists)]


WORKERS = {{workers.Worker, worker.Worker, Thread}}
"""

NEIGHBOR = """
def content():
    with open("/proc/filesystems") as file:
        return file.readline()
"""


@pytest.fixture
def host() -> Iterator[Host]:
    """Return a simulated host."""
    host = Host(0, lambda: 5.0)
    host.files.add(FILE, 0o120777).target = "target"
    with simulated(host):
        yield host


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory whose modules are in the package."""
    copy = importlib.import_module(COPY)
    monkeypatch.setattr(copy, "__path__", [*copy.__path__, str(tmp_path)])
    return tmp_path


def imported(package: Path, name: str, text: str) -> ModuleType:
    """Return a new module of the package."""
    (package / f"{name}.py").write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    return importlib.import_module(f"{COPY}.{name}")


def test_a_new_module_gets_the_simulated_system(host: Host, package: Path) -> None:
    (package / "new_neighbor.py").write_text(NEIGHBOR, encoding="utf-8")
    new = imported(package, "new", NEW)
    process = host.new_process()
    assert process.run(new.links) == ["target"] * 3
    assert process.run(new.existence) == [True] * 4
    assert process.run(new.in_function) == (["file"], "nodev\tproc\n", 4)
    assert new.Times().read() == (host.monotonic(), host.monotonic(), host.wall_time())
    assert [kind.__module__ for kind in new.WORKERS] == ["tests.simulation.system"]
    host.system_call = lambda *_: 7  # type: ignore[method-assign] # how the module calls the kernel
    assert new.binderfs.call("umount2", b"/", 0) == 7


@pytest.mark.parametrize("statement", ["import subprocess", "from shutil import rmtree", "from os import fork"])
def test_a_module_cannot_get_what_is_not_simulated(host: Host, package: Path, statement: str) -> None:
    with pytest.raises((ImportError, AssertionError), match=r"subprocess|shutil|fork"):
        imported(package, f"with_{statement.split()[1]}", statement)


def test_a_simulation_does_not_load_the_real_package() -> None:
    """A class of one is none of the other."""
    code = "import sys, tests.simulation.scenario; print(*[name for name in sys.modules if name == 'aosp_plugin'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"\n"  # noqa: S603 - this code


def test_the_real_package_keeps_the_real_system() -> None:
    assert importlib.import_module("aosp_plugin.binder.driver.host").os is importlib.import_module("os")
