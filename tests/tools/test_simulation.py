"""The simulation: the same for the same seed, and able to find defects that are put into the plugin."""

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.api import SimulatedRequests
from tests.simulation.scenario import Result, Step, kind_of, run, shrunk, steps_of
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.binder.provision import phone_mount
    from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
    from aosp_plugin.framework.dra import api_claims
    from aosp_plugin.framework.dra.kubelet_service import KubeletService
    from aosp_plugin.framework.inventory import Inventory, Snapshot
    from aosp_plugin.framework.metrics import Metrics
    from aosp_plugin.framework.registration import Registration
    from aosp_plugin.framework.scan_loop import ScanLoop
    from aosp_plugin.framework.service import http
    from aosp_plugin.report import node_reporter
    from aosp_plugin.report.node_events import ConditionWatch

LENGTH = 120
SEEDS = 60
FEW = 8
"""Faults of a shrunk case, at the most."""


def digests(seeds: Iterable[int]) -> list[str]:
    """Return what identifies the log of the run of each seed. The iteration order of a set shows in few runs."""
    logs = ("\n".join(run(seed, steps_of(seed, 2 * LENGTH)).lines) for seed in seeds)
    return [hashlib.sha256(log.encode()).hexdigest() for log in logs]


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    """Byte for byte in its log, in other processes with other hashes of texts, directories, time zones and locales."""
    code = "from tests.tools.test_simulation import digests; print(digests(range(4)))"
    here = {"PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]), "PATH": os.environ["PATH"]}
    others = [{"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}, {"PYTHONHASHSEED": "2", "LC_ALL": "C", "NODE_NAME": "other"}]
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.Popen(command, cwd=tmp_path, env=here | other, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this code
        for other in others
    ]
    found = digests(range(4))
    assert [run.communicate()[0].strip() for run in runs] == [str(found)] * len(others)
    assert len({*found}) == len(found)


def lost_wake_up(self: Any, devices: Any) -> None:
    """Streams do not hear of a new snapshot."""
    self.snapshot = Snapshot(self.snapshot.revision + 1, devices.values())


RESTORE_OR_MOUNT, CLOSE, WATCH = PhoneProvisioner._restore_or_mount, KubeletService.close, SimulatedRequests.watch


def recreation_of_a_device_in_use(self: Any, phone: str, path: str) -> bool:
    """Phones that exist are mounted again after a restart."""
    mounted = vars(self).setdefault("mounted_again", set())
    if phone in mounted:
        return RESTORE_OR_MOUNT(self, phone, path)
    mounted.add(phone)
    self._attach(phone, path)
    return True


def no_scan_without_an_event(self: Any, _seconds: float | None) -> None:
    """Never find a change whose event is lost."""
    self._due = 0.0 if self._scanning.failing else float("inf")


def incomplete_phone(*_: object) -> None:
    """Attach a phone before its devices have their mode."""


async def pause_that_never_ends(self: Any, _seconds: float) -> None:
    """Try a failed registration again after a quarter of an hour."""
    await self._clock.wait(self._stop, timeout=900.0)


async def spec_removed_too_early(self: Any) -> None:
    """Remove the CDI specs of claims when the plugin ends."""
    await CLOSE(self)
    claims = self._claims
    for uid in [*claims.prepared]:
        await claims._worker.run(partial(claims._host._specs.remove, uid))


def slice_not_written_after_410(self: Any, *arguments: Any, opened: object, **keywords: Any) -> Any:
    """Do not compare the slices when a watch begins again."""
    del opened
    return WATCH(self, *arguments, **keywords)


TEXT, COUNT_DEVICES, IS_NEEDED = http.text, Metrics.count_devices, api_claims.is_needed


def readiness_that_ignores_a_condition(status: HTTPStatus, line: str) -> Any:
    """Be ready while the kubelet has not registered a resource."""
    return TEXT(HTTPStatus.OK if "registration failed" in line else status, line)


def claim_of_another_driver_as_well_that_is_gone(record: Any, claim: Any) -> bool:
    """Take a claim that also holds another driver's device for one that does not need its own."""
    return IS_NEEDED(record, claim) and all(result.driver == record.driver for result in claim.results)


def gauge_that_is_not_updated(self: Any, resource: str, snapshot: Snapshot) -> None:
    """Count the devices of the first scan alone."""
    if snapshot.revision <= 1:
        COUNT_DEVICES(self, resource, snapshot)


def condition_without_an_event(_watch: object) -> Iterable[object]:
    """Write no Event when a condition lasts, or ends."""
    return ()


def taint_that_is_removed_too_early(_server: object) -> bool:
    """Remove the startup taint while resources are not ready, or have no healthy device."""
    return True


DEFECTS = (
    (KubeletService, "close", spec_removed_too_early),
    (SimulatedRequests, "watch", slice_not_written_after_410),
    (Inventory, "_replace", lost_wake_up),
    (PhoneProvisioner, "_restore_or_mount", recreation_of_a_device_in_use),
    (ScanLoop, "_set_due", no_scan_without_an_event),
    (phone_mount, "fill", incomplete_phone),
    (Registration, "_pause", pause_that_never_ends),
    (http, "text", readiness_that_ignores_a_condition),
    (api_claims, "is_needed", claim_of_another_driver_as_well_that_is_gone),
    (Metrics, "count_devices", gauge_that_is_not_updated),
    (ConditionWatch, "occurrences", condition_without_an_event),
    (node_reporter, "is_ready", taint_that_is_removed_too_early),
)


def found(defect: Callable[..., object]) -> tuple[int, list[Step], Result]:
    """Return the first seed that finds a defect, with the steps until then. An error of its own would prove nothing."""
    for seed in range(SEEDS):
        steps = steps_of(seed, LENGTH)
        result = run(seed, steps)
        if result.violations:
            print(f"{defect.__name__}: {seed * LENGTH + result.faults.total()} faults, {kind_of(result)}")
            assert [text for text in result.violations if "AttributeError" in text or "TypeError" in text] == []
            return seed, steps[: result.faults.total()], result
    pytest.fail(f"not found by {SEEDS * LENGTH} faults")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("owner", "name", "defect"), DEFECTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_defect_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, defect: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, defect)
    found(defect)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("owner", "name", "defect"), DEFECTS[1:4], ids=lambda value: getattr(value, "__name__", None))
def test_a_case_is_shrunk_to_a_few_faults(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, defect: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, defect)
    seed, steps, result = found(defect)
    assert len(shrunk(seed, steps, kind_of(result))) <= FEW


SEQUENCES = (
    "pod_starts count_is_lowered container_restarts",
    "pod_starts per_device_is_lowered container_restarts",
    "pod_starts resource_is_renamed pod_starts",
    "pod_starts binderfs_is_mounted_again resource_is_renamed",
    "claim_arrives driver_is_renamed claim_arrives",
    "claim_arrives cdi_directory_moves claim_arrives",
    "claim_arrives phones_move driver_is_renamed",
    "claim_arrives api_changes cdi_directory_is_replaced",
    "claim_arrives driver_is_renamed phones_move cdi_directory_is_replaced",
    "pod_starts foreign_mount_covers_a_phone count_is_lowered",
    "claim_arrives plugin_is_stopped cdi_directory_is_replaced container_with_a_claim_restarts",
)
"""Changes of the configuration under load, each of which a plugin has not survived."""


@pytest.mark.parametrize("names", SEQUENCES)
def test_pods_keep_their_devices_when_the_configuration_changes(names: str) -> None:
    """With the configurations of several seeds, which also decide between reload and restart."""
    for seed in range(12):
        rng = random.Random(seed)  # noqa: S311 - repeatable
        steps = [Step(rng.uniform(0.0, 1.0), name, 1.0, rng.getrandbits(32), is_last=False) for name in names.split()]
        steps[-1] = steps[-1]._replace(is_last=True)
        assert run(seed, steps).violations == []
