"""The private parts of watchdog that ``framework.events.inotify`` uses: a change of watchdog must fail here."""

from __future__ import annotations

import inspect
import subprocess
import sys

from watchdog.observers import inotify_c
from watchdog.observers.inotify_c import InotifyFD

from aosp_plugin.framework.events.inotify import DirectoryWatch


def test_inotify_instance_has_the_methods_used() -> None:
    for name, parameters in (
        ("__init__", ["self"]),
        ("add_callback", ["self", "path", "mask", "callback", "id_"]),
        ("remove_callbacks", ["self", "callbacks"]),
        ("start", ["self"]),
        ("stop", ["self"]),
        ("join", ["self", "timeout"]),
    ):
        assert list(inspect.signature(getattr(InotifyFD, name)).parameters) == parameters


def test_directory_watch_has_the_callbacks_that_watchdog_calls() -> None:
    callbacks = {name for name in vars(inotify_c.WatchCallback) if name.startswith("on_")}
    assert callbacks == {"on_event", "on_watch_deleted", "on_queue_overflow"}
    for name in callbacks:
        expected = inspect.signature(getattr(inotify_c.WatchCallback, name)).parameters
        assert len(inspect.signature(getattr(DirectoryWatch, name)).parameters) == len(expected)


def test_event_has_the_name_of_the_file() -> None:
    assert inspect.signature(inotify_c.InotifyEvent).parameters.keys() == {"wd", "mask", "cookie", "name"}


def test_constants_are_those_of_the_kernel() -> None:
    constants = inotify_c.InotifyConstants
    assert (constants.IN_CREATE, constants.IN_DELETE, constants.IN_MOVE) == (0x100, 0x200, 0xC0)
    assert (constants.IN_DELETE_SELF, constants.IN_MOVE_SELF, constants.IN_ONLYDIR) == (0x400, 0x800, 0x01000000)


SCARCE = """
import os, resource
from aosp_plugin.framework.events.inotify import Inotify

def use_up():
    opened = []
    try:
        while True:
            opened.append(os.dup(0))
    except OSError:
        return opened

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = use_up()
for free in (1, 2):
    for _ in range(free):
        os.close(held.pop())
    try:
        Inotify(print)
    except OSError:
        held += (now_free := use_up())
        print(free, len(now_free))
"""


def test_failed_instance_costs_no_descriptor() -> None:
    """An instance requires three. A subscriber tries again every second."""
    program = subprocess.run([sys.executable, "-c", SCARCE], check=True, capture_output=True, text=True)  # noqa: S603
    assert program.stdout.split() == ["1", "1", "2", "2"]
