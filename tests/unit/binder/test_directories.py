"""Threads that change the directories of phones and binder devices."""

import threading

import pytest

from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.binder.provision import directories
from aosp_plugin.binder.provision.directories import exclusive
from tests.support import PATIENCE


def test_a_thread_that_hangs_in_one_directory_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread for the same directory fails after a deadline, and waits no more when the first has ended."""
    monkeypatch.setattr(directories, "LOCK_TIMEOUT", 0.1)
    hanging, release = threading.Event(), threading.Event()

    def hang() -> None:
        with exclusive("/run/a"):
            hanging.set()
            release.wait(PATIENCE)

    first = threading.Thread(target=hang)
    first.start()
    assert hanging.wait(PATIENCE)
    try:
        with exclusive("/run/b"):
            pass
        with pytest.raises(HostError, match="cannot change /run/a: another resource"), exclusive("/run/a"):
            pytest.fail("two threads have the directory")
    finally:
        release.set()
        first.join(PATIENCE)
    with exclusive("/run/a"):
        pass
