"""A recreation of binder devices that are plain files, which are in no binderfs."""

import os

import pytest

from aosp_plugin.binder.devices import scanner
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.driver.host import Host, HostError
from aosp_plugin.binder.provision import recreation


class Recreations:
    """Replaces ``binder.provision.recreation``, and the binderfs that the devices are in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recreated: list[str] = []
        """Name of each device, as soon as it is recreated."""
        self.failure: HostError | None = None
        monkeypatch.setattr(recreation, "recreate_device", self._recreate_device)
        monkeypatch.setattr(scanner, "kind_of", lambda *_: Kind.BINDERFS)

    def _recreate_device(self, device: BinderDevice, _host: Host) -> None:
        if self.failure is not None:
            raise self.failure
        fresh = f"{device.path},"
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL))
        os.rename(fresh, device.path)
        self.recreated.append(device.name)  # last: a test that waits for it may change the file
