"""The private parts of watchdog that ``framework.events.inotify`` uses: a change of watchdog must fail here."""

from __future__ import annotations

import subprocess
import sys

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
