"""Recreation as the backend and the kubelet see them.

Plain files are no binderfs, so the replacement of a device is faked here. ``tests/e2e/kernel`` tests the real one.
"""

import contextlib
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest

from aosp_plugin.binder.devices.health import HealthProblem, Reason
from aosp_plugin.binder.devices.sets import PHONE_BINDER_DEVICES
from aosp_plugin.binder.driver.binderfs import DevicesExhaustedError
from aosp_plugin.config.keys import Phones
from aosp_plugin.config.values import Recreate
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.backend import DeviceList
from aosp_plugin.framework.errors import BackendError
from aosp_plugin.framework.runtime import Runtime
from kubelet_standin import AdmissionError, Container, Kubelet, Pod
from tests.backends import Served, binder_backend
from tests.documents import PROJECT
from tests.recreations import Recreations
from tests.support import IN_LIFE, RESOURCE, DeviceDirectory, run, until


@pytest.fixture
def devices(device_directory: DeviceDirectory) -> DeviceDirectory:
    """Return a device directory with two devices that looks like a binderfs."""
    (device_directory.directory / "binder-control").touch()
    device_directory.add(0, 1)
    return device_directory


@pytest.fixture
def backend(recreations: Recreations, devices: DeviceDirectory) -> Served:
    """Return a backend with ``recreate: on-start``."""
    return recreating(devices)


def recreating(devices: DeviceDirectory, *device_list: DeviceList) -> Served:
    return binder_backend(
        devices.directory,
        recreate=Recreate.ON_START,
        device_list=device_list or (DeviceList.VOLUME_MOUNTS,),
        cdi_dir=devices.directory.parent / "cdi",
    )


def test_failed_recreation_makes_the_device_unhealthy_until_a_retry_succeeds(
    recreations: Recreations, backend: Served
) -> None:
    """The update of the host after each scan retries. The success requires a scan, because there is no file event."""
    backend.scan_and_update()
    recreations.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder1: max= is reached")
    with pytest.raises(BackendError, match="'aosp_binder1' could not be recreated: cannot recreate"):
        backend.pre_start(["aosp_binder1"])
    assert backend.scan() == {"aosp_binder0": "", "aosp_binder1": "not-recreated"}
    backend.update_host()
    assert backend.due() is None, "the retry failed too, which changes nothing"
    assert backend.found.devices[1].detail == "not-recreated: cannot recreate /dev/aosp_binder1: max= is reached"
    recreations.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder1: no minor number is left")
    backend.update_host()
    assert backend.due() == 0.0
    backend.scan()
    assert backend.found.devices[1].detail.endswith("no minor number is left"), "the cause of the last attempt"
    recreations.failure = None
    backend.update_host()
    assert backend.due() == 0.0
    backend.scan()
    assert [device.reason for device in backend.found.devices] == ["", ""]
    assert recreations.recreated == ["aosp_binder1"]


def test_a_start_that_succeeds_ends_the_retries(recreations: Recreations, backend: Served) -> None:
    """A container has got the device: another recreation would take it away."""
    backend.scan()
    recreations.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder1: max= is reached")
    for name in ("aosp_binder0", "aosp_binder1"):
        with pytest.raises(BackendError):
            backend.pre_start([name])
    recreations.failure = None
    backend.pre_start(["aosp_binder1"])
    backend.update_host()
    assert recreations.recreated == ["aosp_binder1", "aosp_binder0"]


def test_device_that_another_plugin_has_replaced_is_not_recreated(
    recreations: Recreations, backend: Served, devices: DeviceDirectory
) -> None:
    """In a rolling update that was rolled back, the other plugin has given the fresh device to a container."""
    backend.scan()
    recreations.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder1: max= is reached")
    with pytest.raises(BackendError):
        backend.pre_start(["aosp_binder1"])
    fresh = devices.directory / "fresh"
    fresh.touch()
    fresh.rename(devices.directory / "aosp_binder1")
    recreations.failure = None
    backend.scan_and_update()
    assert recreations.recreated == []
    assert backend.scan() == {"aosp_binder0": "", "aosp_binder1": ""}


def test_phones_that_cannot_be_mounted_keep_no_spec_from_being_written(devices: DeviceDirectory) -> None:
    """The directory has files, so that no phone is mounted in it."""
    (devices.directory / "phone0").mkdir()
    for name in PHONE_BINDER_DEVICES:
        (devices.directory / "phone0" / name).touch()
    cdi_dir = devices.directory.parent / "cdi"
    phones = Phones(count=1, directory=str(devices.directory))
    backend = binder_backend("/dev", phones=phones, device_list=(DeviceList.CDI_CRI,), cdi_dir=cdi_dir)
    backend.scan()
    with pytest.raises(BackendError, match="is not empty"):
        backend.update_host()
    assert os.listdir(cdi_dir) != []


@contextlib.asynccontextmanager
async def serving(backend: Served, kubelet: Kubelet, pre_start: float = IN_LIFE.pre_start) -> AsyncIterator[Pod]:
    """Serve two devices, and admit a pod with one."""
    pod = Pod("phone", [Container("main", {RESOURCE: 1})])
    runtime = Runtime(timings=IN_LIFE._replace(pre_start=pre_start))
    async with run(DevicePlugin(backend.backend, kubelet_dir=kubelet.directory, runtime=runtime)):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 2)
        await kubelet.admit(pod)
        yield pod


# -- what the event of a pod says, and the runbook explains


class Node(NamedTuple):
    """A plugin with two devices, of which a pod has one."""

    recreations: Recreations
    devices: DeviceDirectory
    backend: Served
    kubelet: Kubelet
    pod: Pod
    device: str

    async def answer(self) -> str:
        """Start the container; return why it does not start, or an empty text."""
        try:
            await self.kubelet.start_container(self.pod, "main")
        except AdmissionError as error:
            return str(error)
        return ""

    async def lose(self) -> None:
        """Remove the device, and wait until the kubelet knows."""
        (self.devices.directory / self.device).unlink()
        await self.kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 1)


@contextlib.asynccontextmanager
async def node(
    recreations: Recreations, devices: DeviceDirectory, kubelet: Kubelet, pre_start: float = IN_LIFE.pre_start
) -> AsyncIterator[Node]:
    backend = recreating(devices, DeviceList.CDI_CRI)
    async with serving(backend, kubelet, pre_start) as pod:
        (device,) = kubelet.allocated(RESOURCE)
        await until(lambda: recreations.recreated == [device])
        yield Node(recreations, devices, backend, kubelet, pod, device)


async def closed(node: Node) -> str:
    await node.lose()
    return await node.answer()


async def in_use(node: Node) -> str:
    held = HealthProblem(Reason.IN_USE_BY_OTHER_API, str(Reason.IN_USE_BY_OTHER_API))
    node.backend.tell(held={node.device: held})
    return await node.answer()


async def not_recreated(node: Node) -> str:
    """Let two starts fail: the kubelet knows of the first failure when it asks again, and is told the cause."""
    node.recreations.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder0: max= is reached")
    await node.answer()
    await node.kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 1)
    message = await node.answer()
    assert "max= is reached" in message
    return message


async def not_in_spec(node: Node) -> str:
    cdi_dir = node.devices.directory.parent / "cdi"
    while not cdi_dir.is_file():  # the plugin may be writing the spec
        shutil.rmtree(cdi_dir, ignore_errors=True)
        cdi_dir.touch()
    return await node.answer()


async def dropped(node: Node) -> str:
    node.backend.reset()
    await node.lose()
    return await node.answer()


RUNBOOK = PROJECT / "docs/runbook.md"
ANSWERS: dict[Callable[[Node], Awaitable[str]], str] = {
    closed: "code = FailedPrecondition desc = device … is unhealthy: …",
    in_use: "code = FailedPrecondition desc = device … is unhealthy: …",
    not_recreated: "code = Internal desc = device … could not be recreated: …",
    not_in_spec: "code = Internal desc = devices … were recreated, but: …",
    dropped: "code = NotFound desc = device … is unknown",
}
HANGS = "code = DeadlineExceeded desc = device … could not be prepared: …"
STOPPED = "endpoint … has been stopped"


def matches(row: str, message: str) -> bool:
    return re.search(re.escape(row).replace("…", ".+"), message) is not None


@pytest.mark.parametrize("cause", ANSWERS)
async def test_event_of_a_container_that_does_not_start_again(
    recreations: Recreations, devices: DeviceDirectory, kubelet: Kubelet, cause: Callable[[Node], Awaitable[str]]
) -> None:
    async with node(recreations, devices, kubelet) as it:
        message = await cause(it)
    assert "PreStartContainer" in message
    rows = {*ANSWERS.values(), HANGS, STOPPED}
    assert [row for row in rows if matches(row, message)] == [ANSWERS[cause]], message


@pytest.mark.parametrize(("function", "call"), [("recreate_device", ""), ("Recreator.retry", "host update")])
async def test_event_of_a_container_whose_plugin_hangs(
    recreations: Recreations,
    devices: DeviceDirectory,
    kubelet: Kubelet,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    call: str,
) -> None:
    """The event names the call on the host for which the recreation waits, if it is another one."""
    begun, ended = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        begun.set()
        ended.wait()

    async with node(recreations, devices, kubelet, pre_start=1.0) as it:
        monkeypatch.setattr(f"aosp_plugin.binder.provision.recreation.{function}", hang)
        if call:
            devices.add(2)
            await until(begun.is_set)
        message = await it.answer()
        ended.set()
    assert matches(HANGS, message), message
    assert message.partition("because of a ")[2].removesuffix(" that has not ended") == call


async def test_event_of_a_container_whose_plugin_has_stopped(
    recreations: Recreations, devices: DeviceDirectory, kubelet: Kubelet
) -> None:
    async with node(recreations, devices, kubelet) as it:
        pass
    message = await it.answer()
    assert matches(STOPPED, message), message


async def test_a_dropped_device_that_pods_may_have_delays_no_container(
    recreations: Recreations, devices: DeviceDirectory, kubelet: Kubelet
) -> None:
    """Nothing is recreated, so the runtime says what is missing."""
    async with node(recreations, devices, kubelet) as it:
        it.backend.tell(former=frozenset({it.device}))
        assert await dropped(it) == ""
        assert recreations.recreated == [it.device], "by Allocate"


async def test_nobody_asks_a_plugin_that_does_not_recreate(devices: DeviceDirectory, kubelet: Kubelet) -> None:
    backend = binder_backend(devices.directory, recreate=Recreate.NEVER)
    async with serving(backend, kubelet) as pod:
        for path in devices.directory.iterdir():
            path.unlink()
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 0)
        await kubelet.start_container(pod, "main")


def test_the_runbook_has_each_event_of_a_container_that_does_not_start_again() -> None:
    """The row on CDI devices is of the runtime."""
    section = RUNBOOK.read_text(encoding="utf-8").partition("### A container does not start again\n")[2]
    rows = re.findall(r"^\| `([^`]+)`", section.partition("\n### ")[0], re.MULTILINE)
    assert {*rows} == {*ANSWERS.values(), HANGS, STOPPED, "unresolvable CDI devices"}
