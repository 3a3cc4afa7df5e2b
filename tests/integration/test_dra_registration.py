"""A DRA driver registers with each version of the kubelet, and again after everything that can come between them."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from typing import Any

import pytest

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.api import pluginregistration_pb2 as pb
from aosp_plugin.framework.sockets import listener
from kubelet_standin import DraKubelet, DraVersion
from tests.dra_drivers import DRIVER, FAST_KUBELET, HASTY, Driver, pod, running_driver
from tests.support import PATIENCE, until


@pytest.fixture
def registry(kubelet_dir: str) -> str:
    """Return the path of the kubelet's directory, which does not exist."""
    return f"{kubelet_dir}/plugins_registry"


def kubelet_at(registry: str, version: DraVersion = DraVersion.V1_37) -> DraKubelet:
    """Return a kubelet that does not hesitate."""
    return DraKubelet(registry, version=version, timings=FAST_KUBELET)


async def connected(kubelet: DraKubelet, driver: Driver, name: str = DRIVER) -> None:
    """Wait until the kubelet has registered the driver's current socket, and the driver knows."""
    await kubelet.wait_for(lambda k: k.connected(name) and driver.service.registered, PATIENCE)
    assert driver.service.problem == ""


async def problem(driver: Driver, text: str) -> None:
    """Wait until the driver has a problem that contains ``text``."""
    await until(lambda: text in driver.service.problem)


@pytest.mark.parametrize("version", DraVersion)
async def test_driver_registers_with_each_version(registry: str, version: DraVersion) -> None:
    """Kubelets use v1, and the newest health service that they know."""
    os.mkdir(registry)
    async with running_driver(registry) as driver, kubelet_at(registry, version) as kubelet:
        await connected(kubelet, driver)
        (view,) = kubelet.drivers[DRIVER]
        assert view.service == "v1.DRAPlugin"
        assert view.health_service == ("v1" if version is DraVersion.V1_37 else "v1alpha1") + ".DRAResourceHealth"
        assert view.endpoint == f"{registry}/{driver.service.endpoint}"
        assert driver.events.seen == ["ok"]
        game = pod("game")
        await kubelet.prepare(game)
        assert kubelet.cdi_devices(game, "phone") == ("example.com/phone=uid-game",)
        await kubelet.unprepare(game)
        assert driver.handler.unprepared == ["game"]
    assert os.listdir(registry) == []
    assert driver.events.seen == ["ok", "unregistered"]


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
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
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
        assert driver.events.seen == ["ok"] * 4


async def delete_socket(path: str) -> None:
    """Remove the driver's socket."""
    os.unlink(path)


async def replace_socket(path: str) -> None:
    """Replace the driver's socket with one without a listener."""
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(path + ".new")
        os.rename(path + ".new", path)


async def replace_directory(path: str) -> None:
    """Replace the directory with an empty one, as a reinstallation of the kubelet does."""
    registry = os.path.dirname(path)
    os.rename(registry, registry + ".old")
    os.mkdir(registry)


@pytest.mark.parametrize("damage", [delete_socket, replace_socket, replace_directory])
async def test_driver_registers_another_socket(registry: str, damage: Callable[[str], object]) -> None:
    """After it lost the first one."""
    async with kubelet_at(registry) as kubelet, running_driver(registry) as driver:
        await connected(kubelet, driver)
        first = driver.service.endpoint
        if damage is replace_directory:
            await kubelet.stop()
        await damage(f"{registry}/{first}")  # type: ignore[misc]
        if damage is replace_directory:
            await kubelet.start()
        await kubelet.wait_for(lambda _: driver.service.endpoint not in {first, ""}, PATIENCE)
        await connected(kubelet, driver)
        await kubelet.prepare(pod("game"))
        assert driver.events.seen == ["ok", "unregistered", "ok"]


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
            assert set(driver.events.seen[:-1]) == {"failed"}


@pytest.mark.parametrize("version", DraVersion)
async def test_lost_confirmation_is_repeated(registry: str, version: DraVersion) -> None:
    """Kubelets before 1.36 never repeat it: the driver shows another socket."""
    async with kubelet_at(registry, version) as kubelet:
        kubelet.faults.skip_notify = True
        async with running_driver(registry, timings=HASTY) as driver:
            await kubelet.wait_for(
                lambda k: any("failed to send" in each.outcome for each in k.registrations), PATIENCE
            )
            kubelet.faults.skip_notify = False
            await connected(kubelet, driver)


def stale(directory: str, name: str) -> None:
    """Leave a socket behind, as a killed process does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{directory}/{name}")


async def test_stale_sockets_are_removed_at_the_start(registry: str) -> None:
    """Hidden ones too, but neither those of other drivers nor one that answers."""
    os.mkdir(registry)
    for name in (f"{DRIVER}-7-1700000000000.sock", f".{DRIVER}-7-1700000000001.sock", "other.example.com-7-17.sock"):
        stale(registry, name)
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(f"{registry}/{DRIVER}-8-1700000000000.sock")
        alive.listen()
        async with kubelet_at(registry) as kubelet, running_driver(registry) as driver:
            await connected(kubelet, driver)
            remaining = {f"{DRIVER}-8-1700000000000.sock", "other.example.com-7-17.sock", driver.service.endpoint}
            assert set(os.listdir(registry)) == remaining
            assert listener(f"{registry}/{driver.service.endpoint}") == os.getpid()


async def test_calls_on_a_given_up_socket_are_ignored(registry: str) -> None:
    """A kubelet that answers late for another one says nothing about the current one."""
    async with kubelet_at(registry) as kubelet, running_driver(registry) as driver:
        await connected(kubelet, driver)
        driver.service.restarted.clear()
        late = pb.RegistrationStatus(plugin_registered=False, error="it is too late")
        context: Any = None
        await driver.service._get_info("other.sock", pb.InfoRequest(), context)
        await driver.service._notify("other.sock", late, context)
        assert not driver.service.restarted.is_set()
        assert driver.service.registered
