"""A DRA driver registers with each version of the kubelet, and again after everything that can come between them."""

from __future__ import annotations

import os
import stat

import pytest

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.dra.driver_names import MAX_DRIVER_NAME_LENGTH
from kubelet_standin import DraKubelet, KubeletVersion
from tests.dra_drivers import DRIVER, FAST_KUBELET, HASTY, Driver, pod, running_driver
from tests.layouts import LAYOUTS
from tests.support import PATIENCE, causes, counted, reported, until


@pytest.fixture
def registry(kubelet_dir: str) -> str:
    """Return the path of the kubelet's directory, which does not exist."""
    return f"{kubelet_dir}/plugins_registry"


def kubelet_at(registry: str, version: KubeletVersion = KubeletVersion.V1_37) -> DraKubelet:
    """Return a kubelet that does not hesitate."""
    return DraKubelet(registry, version=version, timings=FAST_KUBELET)


async def connected(kubelet: DraKubelet, driver: Driver) -> None:
    """Wait until the kubelet has registered the driver's current socket, and the driver knows."""
    await kubelet.wait_for(lambda k: k.connected(DRIVER) and driver.service.registered, PATIENCE)
    assert reported(driver.service) == []


async def problem(driver: Driver, text: str) -> None:
    """Wait until the driver has a problem that contains ``text``."""
    await until(lambda: text in causes(driver.service))


@pytest.mark.parametrize("version", KubeletVersion)
async def test_driver_registers_with_each_version(registry: str, version: KubeletVersion) -> None:
    """Kubelets use v1, and the newest health service that they know."""
    os.mkdir(registry)
    async with running_driver(registry) as driver, kubelet_at(registry, version) as kubelet:
        await connected(kubelet, driver)
        (view,) = kubelet.drivers[DRIVER]
        assert view.service == "v1.DRAPlugin"
        assert view.health_service == ("v1" if version is KubeletVersion.V1_37 else "v1alpha1") + ".DRAResourceHealth"
        assert view.endpoint == f"{registry}/{driver.service.endpoint}"
        assert counted(driver.metrics, "registrations_total", result="ok") == 1
        game = pod("game")
        await kubelet.prepare(game)
        assert kubelet.cdi_devices(game, "phone") == ("example.com/phone=uid-game",)
        await kubelet.unprepare(game)
        assert driver.handler.unprepared == ["game"]
    assert os.listdir(registry) == []
    assert counted(driver.metrics, "registered") == 0
    assert counted(driver.metrics, "registrations_total", result="ok") == 1


async def test_longest_driver_name_is_registered_below_the_longest_root_directory(kubelet_dir: str) -> None:
    """The directory has the length of MicroK8s's; the kubelet dials the same path."""
    length = max(len(f"{layout.root}/plugins_registry") for layout in LAYOUTS)
    registry = f"{kubelet_dir}/{'d' * (length - len(kubelet_dir) - 1)}"
    os.mkdir(registry)
    name = "d" * (MAX_DRIVER_NAME_LENGTH - 12) + ".example.com"
    async with running_driver(registry, name=name) as driver, kubelet_at(registry) as kubelet:
        await kubelet.wait_for(lambda k: k.connected(name) and driver.service.registered, PATIENCE)
        assert causes(driver.service) == ""


async def test_driver_waits_for_the_directory(registry: str) -> None:
    """A node may get its kubelet after its driver."""
    async with running_driver(registry) as driver:
        await problem(driver, f"waiting for kubelet: there is no {registry}")
        async with kubelet_at(registry) as kubelet:
            await connected(kubelet, driver)


async def test_socket_appears_complete_and_for_the_kubelet_alone(registry: str) -> None:
    """When the kubelet sees it, the server answers, and only root may connect."""
    os.mkdir(registry)
    async with kubelet_at(registry) as kubelet, running_driver(registry) as driver:
        await connected(kubelet, driver)
        assert [each.outcome for each in kubelet.registrations] == ["ok"]
        mode = os.stat(f"{registry}/{driver.service.endpoint}").st_mode
        assert (stat.S_ISSOCK(mode), mode & (stat.S_IRWXG | stat.S_IRWXO)) == (True, 0)
        assert os.listdir(registry) == [driver.service.endpoint]


async def test_driver_registers_again_with_each_restarted_kubelet(registry: str) -> None:
    """On the same socket. Each time, the driver learns that the kubelet was restarted."""
    async with kubelet_at(registry) as kubelet, running_driver(registry) as driver:
        await connected(kubelet, driver)
        endpoint = driver.service.endpoint
        for _ in range(3):
            driver.service.restarted.clear()
            await kubelet.restart()
            assert await wait_any(driver.service.restarted, timeout=PATIENCE)
            await connected(kubelet, driver)
        assert driver.service.endpoint == endpoint
        assert counted(driver.metrics, "registrations_total", result="ok") == 4


async def test_socket_that_the_kubelet_did_not_notice_is_replaced(registry: str) -> None:
    async with kubelet_at(registry) as kubelet:
        kubelet.faults.miss_sockets = True
        async with running_driver(registry, timings=HASTY) as driver:
            await problem(driver, "waiting for kubelet: it has not registered the driver's socket")
            kubelet.faults.miss_sockets = False
            await connected(kubelet, driver)
            assert os.listdir(registry) == [driver.service.endpoint]


async def test_refusal_is_a_problem_until_the_kubelet_accepts(registry: str) -> None:
    """The kubelet repeats its attempts itself."""
    async with kubelet_at(registry) as kubelet:
        kubelet.faults.refuse = "out of order"
        async with running_driver(registry) as driver:
            await problem(driver, "the kubelet refuses the driver: RegisterPlugin error -- plugin validation failed")
            assert not driver.service.registered
            kubelet.faults.refuse = None
            await connected(kubelet, driver)
            assert counted(driver.metrics, "registrations_total", result="failed") > 0
            assert counted(driver.metrics, "registrations_total", result="ok") == 1


@pytest.mark.parametrize("version", KubeletVersion)
async def test_lost_confirmation_is_repeated(registry: str, version: KubeletVersion) -> None:
    """Kubelets before 1.36 never repeat it: the driver shows another socket."""
    async with kubelet_at(registry, version) as kubelet:
        kubelet.faults.skip_notify = True
        async with running_driver(registry, timings=HASTY) as driver:
            await kubelet.wait_for(
                lambda k: any("failed to send" in each.outcome for each in k.registrations), PATIENCE
            )
            kubelet.faults.skip_notify = False
            await connected(kubelet, driver)
