"""A DRA driver registers with each version of the kubelet, and answers its requests, whatever comes between them."""

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.api import pluginregistration_pb2 as registration_pb
from aosp_plugin.framework.dra.claims import DeviceHealth
from aosp_plugin.framework.dra.kubelet_service import CLAIM_SERVICES
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.timing import wait_any
from kubelet_standin import ClaimsError, DraKubelet, KubeletVersion
from tests.dra_drivers import DRIVER, FAST_KUBELET, HASTY, Driver, connected, pod, running_driver
from tests.support import PATIENCE, causes, counted, until


@pytest.fixture
def registry(kubelet_dir: str) -> str:
    """Return the path of the kubelet's directory, which does not exist."""
    return f"{kubelet_dir}/plugins_registry"


def kubelet_at(registry: str, version: KubeletVersion = KubeletVersion.V1_37) -> DraKubelet:
    """Return a kubelet that does not hesitate."""
    return DraKubelet(registry, version=version, timings=FAST_KUBELET)


async def problem(driver: Driver, text: str) -> None:
    """Wait until the driver has a problem that contains ``text``."""
    await until(lambda: text in causes(driver.service))


@pytest.mark.parametrize("version", KubeletVersion)
async def test_driver_registers_with_each_version(registry: str, version: KubeletVersion) -> None:
    """Kubelets use v1, and the newest health service that they know.

    When a kubelet sees the socket, the server answers, and only root may connect.
    """
    os.mkdir(registry)
    async with kubelet_at(registry, version) as kubelet, running_driver(registry) as driver:
        await connected(kubelet, driver)
        assert [each.outcome for each in kubelet.registrations] == ["ok"]
        mode = os.stat(f"{registry}/{driver.service.endpoint}").st_mode
        assert (stat.S_ISSOCK(mode), mode & (stat.S_IRWXG | stat.S_IRWXO)) == (True, 0)
        assert os.listdir(registry) == [driver.service.endpoint]
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


async def test_driver_registers_again_with_each_restarted_kubelet(registry: str) -> None:
    """On the same socket. Each time, the driver learns that the kubelet was restarted. A node may get it later."""
    async with running_driver(registry) as driver:
        await problem(driver, f"waiting for kubelet: there is no {registry}")
        async with kubelet_at(registry) as kubelet:
            await connected(kubelet, driver)
            endpoint = driver.service.endpoint
            for _ in range(3):
                driver.service.restarted.clear()
                await kubelet.restart()
                assert await wait_any(driver.service.restarted, timeout=PATIENCE)
                await connected(kubelet, driver)
            assert driver.service.endpoint == endpoint
            assert counted(driver.metrics, "registrations_total", result="ok") == 4


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


async def test_a_refusal_of_a_registered_driver_is_followed_by_another_socket(registry: str) -> None:
    """Unless the kubelet repeats its attempt."""
    async with kubelet_at(registry) as kubelet, running_driver(registry, timings=HASTY) as driver:
        await connected(kubelet, driver)
        refused = driver.service.endpoint
        status = registration_pb.RegistrationStatus(plugin_registered=False, error="out of order")
        context: Any = None
        await driver.service._notify(refused, status, context)
        await until(lambda: driver.service.endpoint not in {"", refused})
        await connected(kubelet, driver)


# -- requests


@contextlib.asynccontextmanager
async def registered(
    directory: str, version: KubeletVersion = KubeletVersion.V1_37, *, call: float = PATIENCE
) -> AsyncIterator[tuple[DraKubelet, Driver]]:
    """Run a kubelet and a driver that it has registered; ``call`` is the kubelet's deadline for requests."""
    timings = FAST_KUBELET._replace(call=call)
    async with (
        DraKubelet(directory, version=version, timings=timings, watch_health=True) as kubelet,
        running_driver(directory) as driver,
    ):
        await connected(kubelet, driver)
        yield kubelet, driver


@contextlib.asynccontextmanager
async def connection(directory: str, driver: Driver) -> AsyncIterator[grpc.aio.Channel]:
    """Connect to the driver's socket."""
    async with grpc.aio.insecure_channel(f"unix:{directory}/{driver.service.endpoint}") as channel:
        yield channel


def prepare(
    channel: grpc.aio.Channel, *names: str, service: str = CLAIM_SERVICES[0]
) -> grpc.aio.UnaryUnaryCall[pb.NodePrepareResourcesRequest, pb.NodePrepareResourcesResponse]:
    """Call NodePrepareResources for claims."""
    claims = [pb.Claim(namespace="default", name=name, uid=f"uid-{name}") for name in names]
    return channel.unary_unary(
        f"/{service}/NodePrepareResources",
        request_serializer=pb.NodePrepareResourcesRequest.SerializeToString,
        response_deserializer=pb.NodePrepareResourcesResponse.FromString,
    )(pb.NodePrepareResourcesRequest(claims=claims))


@pytest.mark.parametrize("service", CLAIM_SERVICES)
async def test_answer_has_an_entry_for_each_claim(kubelet_dir: str, service: str) -> None:
    """In both versions; also for a claim that is named twice, and for no claim."""
    async with registered(kubelet_dir) as (_, driver), connection(kubelet_dir, driver) as channel:
        response = await prepare(channel, "a", "b", "a", service=service)
        assert set(response.claims) == {"uid-a", "uid-b"}
        device = pb.Device(
            request_names=["phone"], pool_name="node/00000", device_name="a", cdi_device_ids=["example.com/phone=uid-a"]
        )
        assert response.claims["uid-a"] == pb.NodePrepareResourceResponse(devices=[device])
        assert not (await prepare(channel, service=service)).claims
        assert driver.handler.prepared == ["a", "b"]


async def test_request_whose_deadline_has_passed_is_answered_at_once(kubelet_dir: str) -> None:
    """The kubelet has given up."""
    context: Any = SimpleNamespace(time_remaining=lambda: 0.0)
    request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace="default", name="a", uid="uid-a")])
    async with running_driver(kubelet_dir) as driver:
        driver.handler.hook = lambda: asyncio.sleep(0.1)
        response = await driver.service._prepare(request, context)
    assert response.claims["uid-a"].error == "not completed after 0.0 s"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PluginError("no space"), "no space"),
        (OSError(28, "No space left on device"), r"\[Errno 28\] No space left on device"),
        (ValueError("x"), "internal error: ValueError: x"),
    ],
)
async def test_error_of_the_handler_is_the_answer(
    kubelet_dir: str, caplog: pytest.LogCaptureFixture, error: Exception, text: str
) -> None:
    """For Prepare and Unprepare. An unexpected one is logged with its traceback. The next request succeeds."""

    def fail() -> None:
        raise error

    game = pod("game", "a", "b")
    async with registered(kubelet_dir) as (kubelet, driver):
        driver.handler.hook = fail
        with pytest.raises(ClaimsError, match=f"NodePrepareResources failed for ResourceClaim [ab]: {text}$"):
            await kubelet.prepare(game)
        driver.handler.hook = lambda: None
        await kubelet.prepare(game)
        driver.handler.hook = fail
        with pytest.raises(ClaimsError, match=f"NodeUnprepareResources failed for ResourceClaim [ab]: {text}$"):
            await kubelet.unprepare(game)
        driver.handler.hook = lambda: None
        await kubelet.unprepare(game)
        assert (driver.handler.prepared, driver.handler.unprepared) == (["a", "b"], ["a", "b"])
    tracebacks = [record for record in caplog.records if record.message == "claim failed unexpectedly"]
    assert len(tracebacks) == (4 if isinstance(error, ValueError) else 0)
    assert all(record.exc_info for record in tracebacks)
    failed = [vars(record) for record in caplog.records if record.message == "claim failed"]
    assert {(each["claim"], each["uid"]) for each in failed} == {("default/a", "uid-a"), ("default/b", "uid-b")}


async def test_handler_that_hangs_is_answered_for(kubelet_dir: str) -> None:
    """The pod gets an error instead of a deadline."""
    async with registered(kubelet_dir, call=3.0) as (kubelet, driver):
        driver.handler.hook = asyncio.Event().wait
        with pytest.raises(ClaimsError, match=r"ResourceClaim game: not completed after 2\.[0-9] s$"):
            await kubelet.prepare(pod("game"))
        driver.handler.hook = lambda: None
        await kubelet.prepare(pod("other"))
        assert driver.handler.prepared == ["other"]


SICK = DeviceHealth("node/00000", "game", "the node is gone")


@pytest.mark.parametrize("version", [KubeletVersion.V1_32, KubeletVersion.V1_37])
async def test_health_reaches_the_kubelet_at_once_and_after_changes(kubelet_dir: str, version: KubeletVersion) -> None:
    """And again with the next kubelet."""
    async with registered(kubelet_dir, version) as (kubelet, driver):
        driver.handler.report(SICK)
        await kubelet.wait_for(lambda k: k.health(DRIVER, *SICK[:2]).health == "Unhealthy", PATIENCE)
        message = kubelet.health(DRIVER, *SICK[:2]).message
        assert message == (SICK.problem if version.watches_health else "")
        driver.handler.report(SICK._replace(problem=""))
        await kubelet.wait_for(lambda k: k.health(DRIVER, *SICK[:2]).health == "Healthy", PATIENCE)
        await kubelet.restart()
        await kubelet.wait_for(lambda k: k.health(DRIVER, *SICK[:2]).health == "Healthy", PATIENCE)


@pytest.fixture(autouse=True)
def log_levels(caplog: pytest.LogCaptureFixture) -> None:
    """Record all events."""
    caplog.set_level(logging.DEBUG, "aosp_plugin")
