"""The parts of the chaos tests whose errors would hide faults: the selection of steps, and the model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos import faults
from tests.chaos.choice import MAX_FAULTS, goes_with, plan
from tests.chaos.expected import Answer, Expectation, Model
from tests.chaos.files import DeviceDirectory
from tests.chaos.registry import FAULTS
from tests.chaos.setups import Served

if TYPE_CHECKING:
    from pathlib import Path

assert faults.__all__
HEALTHY, UNHEALTHY = Expectation(Answer.YES, Answer.YES), Expectation(Answer.YES, Answer.NO)


@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 12))
def test_plan_depends_on_the_seed_alone(seed: int, steps: int, further: int) -> None:
    """The same seed gives the same steps, and a longer run starts with the steps of a shorter one."""
    assert plan(seed, steps, FAULTS.values()) == plan(seed, steps + further, reversed(FAULTS.values()))[:steps]


@given(st.integers(0, 2**32))
def test_faults_of_a_step_are_compatible(seed: int) -> None:
    """A step has one to four different faults; faults that last come first."""
    for step in plan(seed, 5, FAULTS.values()):
        chosen = [FAULTS[name] for name in step.faults]
        assert 1 <= len(set(chosen)) == len(chosen) <= MAX_FAULTS
        assert [fault.lasts for fault in chosen] == sorted((fault.lasts for fault in chosen), reverse=True)
        for fault in chosen:
            assert goes_with(fault, [other for other in chosen if other is not fault])


def test_fault_that_prevents_a_start_allows_changes_of_devices_only() -> None:
    no_descriptor, killed, disappear = (
        FAULTS[name] for name in ("no-descriptor", "plugin-is-killed", "devices-disappear")
    )
    assert not goes_with(killed, [no_descriptor])
    assert not goes_with(no_descriptor, [killed])
    assert goes_with(disappear, [no_descriptor])
    assert goes_with(no_descriptor, [disappear])


class Modelled:
    """A device directory whose devices are files, and its model."""

    def __init__(self, root: Path, served: Served) -> None:
        self.served = served
        self.devices = DeviceDirectory(str(root / "dev"), str(root / "run"), [served.prefix])
        self.devices.device = None
        self.model = Model([served], self.devices)

    def agree(self) -> None:
        """Let the model agree with a plugin that reports the expected devices."""
        reported = {
            device: "Healthy" if state.healthy is Answer.YES else "Unhealthy"
            for device, state in self.model.devices(self.served).items()
            if state.listed is Answer.YES
        }
        assert self.differs(reported) == ""
        self.model.agree({self.served.name: reported})

    def differs(self, reported: dict[str, str]) -> str:
        """Return the difference between reported and expected devices."""
        return self.model.difference(self.served, reported)


@pytest.fixture
def modelled(tmp_path: Path) -> Modelled:
    return Modelled(tmp_path, Served())


def test_health_depends_on_the_file(modelled: Modelled) -> None:
    """Devices and links to them are healthy, pipes and dangling links are unhealthy, and directories may be missing."""
    for name in ("aosp_binder1", "aosp_binder2", "aosp_binder3"):
        modelled.devices.make(name)
    modelled.devices.link("aosp_binder4")
    modelled.devices.link("aosp_binder5", to="/nowhere")
    modelled.devices.remove("aosp_binder2")
    os.mkfifo(modelled.devices.path("aosp_binder2"))
    modelled.devices.remove("aosp_binder3")
    os.mkdir(modelled.devices.path("aosp_binder3"))
    assert modelled.model.devices(modelled.served) == {
        "aosp_binder1": HEALTHY,
        "aosp_binder2": UNHEALTHY,
        "aosp_binder3": Expectation(Answer.EITHER, Answer.NO),
        "aosp_binder4": HEALTHY,
        "aosp_binder5": UNHEALTHY,
    }


def test_missing_unknown_and_wrong_devices_are_differences(modelled: Modelled) -> None:
    modelled.devices.make("aosp_binder1")
    assert modelled.differs({"aosp_binder1": "Healthy"}) == ""
    assert "is missing" in modelled.differs({})
    assert "aosp_binder9 is reported, but never" in modelled.differs({"aosp_binder1": "Healthy", "aosp_binder9": "x"})
    assert "is reported as Unhealthy" in modelled.differs({"aosp_binder1": "Unhealthy"})
    modelled.devices.remove("aosp_binder1")
    assert "is reported as Healthy" in modelled.differs({"aosp_binder1": "Healthy"})


def test_deleted_device_stays_listed_until_it_may_be_dropped(modelled: Modelled) -> None:
    modelled.devices.make("aosp_binder1")
    modelled.agree()
    modelled.devices.remove("aosp_binder1")
    assert "is missing" in modelled.differs({})
    modelled.model.may_have_forgotten()
    assert modelled.differs({}) == modelled.differs({"aosp_binder1": "Unhealthy"}) == ""
    modelled.model.agree({modelled.served.name: {}})
    assert modelled.differs({}) == ""
    modelled.model.restarted()
    assert modelled.differs({}) == ""


def test_device_on_another_file_system_is_unhealthy(modelled: Modelled) -> None:
    """A device that the plugin knew on another file system is unhealthy; both answers are right after a remount."""
    modelled.devices.make("aosp_binder1")
    modelled.agree()
    modelled.devices.link("aosp_binder1", to="/proc/version")
    assert "is reported as Healthy" in modelled.differs({"aosp_binder1": "Healthy"})
    modelled.devices.link("aosp_binder2", to="/proc/version")
    modelled.model.remounted()
    for health in ("Healthy", "Unhealthy"):
        assert modelled.differs({"aosp_binder1": "Unhealthy", "aosp_binder2": health}) == ""


def test_set_requires_all_devices_and_each_replica_is_listed(tmp_path: Path) -> None:
    modelled = Modelled(tmp_path, Served(size=2, replicas=2))
    for number in ("0", "1", "2", "07", "x"):
        modelled.devices.make(f"aosp_binder{number}")
    assert modelled.model.devices(modelled.served) == {
        "aosp_binder0::0": HEALTHY,
        "aosp_binder0::1": HEALTHY,
        "aosp_binder2::0": UNHEALTHY,
        "aosp_binder2::1": UNHEALTHY,
    }
