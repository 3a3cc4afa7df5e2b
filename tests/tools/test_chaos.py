"""The model of the chaos tests, whose errors would hide faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.expected import Model
from tests.chaos.files import DeviceDirectory
from tests.chaos.remote import Remote
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


def test_device_on_a_file_system_that_hangs_must_be_unhealthy(tmp_path: Path) -> None:
    """The model does not access it, and follows links by itself."""
    served = Served()
    devices = DeviceDirectory(str(tmp_path / "dev"), str(tmp_path / "run"), [served.prefix])
    devices.device = None
    devices.remote = Remote(str(tmp_path), None)
    hanging = tmp_path / "remote"
    hanging.mkdir()
    (hanging / "device").touch()
    (tmp_path / "link").symlink_to(hanging / "device")
    devices.link("aosp_binder1", to=str(tmp_path / "link"))
    model = Model([served], devices)
    assert model.difference(served, {"aosp_binder1": "Healthy"}) == ""
    devices.remote._hanging.add(str(hanging))
    assert "is reported as Healthy" in model.difference(served, {"aosp_binder1": "Healthy"})
    assert model.difference(served, {"aosp_binder1": "Unhealthy"}) == ""
    assert "is missing" in model.difference(served, {})


def test_device_that_is_not_in_the_spec_may_be_unhealthy_while_the_spec_cannot_be_written(tmp_path: Path) -> None:
    served = Served()
    devices = DeviceDirectory(str(tmp_path / "dev"), str(tmp_path / "run"), [served.prefix])
    devices.device = None
    devices.make("aosp_binder1")
    devices.make("aosp_binder2")
    model = Model([served], devices)
    model.named_in_spec = lambda: {"aosp_binder1"}
    assert model.difference(served, {"aosp_binder1": "Healthy", "aosp_binder2": "Unhealthy"}) == ""
    assert "aosp_binder1 is reported" in model.difference(
        served, {"aosp_binder1": "Unhealthy", "aosp_binder2": "Healthy"}
    )
