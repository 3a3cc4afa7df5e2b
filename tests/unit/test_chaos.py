"""The model of the chaos tests, whose errors would hide faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.expected import Model
from tests.chaos.files import DeviceDirectory
from tests.chaos.setups import Served

if TYPE_CHECKING:
    from pathlib import Path


def test_missing_unknown_and_wrong_devices_are_differences(tmp_path: Path) -> None:
    served = Served()
    devices = DeviceDirectory(str(tmp_path / "dev"), str(tmp_path / "run"), [served.prefix])
    devices.device = None
    devices.make("aosp_binder1")
    model = Model([served], devices)
    assert model.difference(served, {"aosp_binder1": "Healthy"}) == ""
    assert "is missing" in model.difference(served, {})
    assert "but never" in model.difference(served, {"aosp_binder1": "Healthy", "aosp_binder9": "x"})
    assert "is reported as Unhealthy" in model.difference(served, {"aosp_binder1": "Unhealthy"})
    devices.remove("aosp_binder1")
    assert "is reported as Healthy" in model.difference(served, {"aosp_binder1": "Healthy"})
