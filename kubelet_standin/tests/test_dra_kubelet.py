"""The DRA half of the stand-in kubelet behaves like the kubelets that it models."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from kubelet_standin import ClaimsError, DraClaim, DraKubelet, DraPod, DraTimings, KubeletVersion
from kubelet_standin.api import dra_health_pb2 as health_pb
from kubelet_standin.api import dra_pb2 as pb
from kubelet_standin.api import pluginregistration_pb2 as registration_pb
from kubelet_standin.apiserver import ApiServer
from kubelet_standin.apiserver.node_api import API, NodeApi
from kubelet_standin.dra.health import HealthCache
from kubelet_standin.dra.watcher import RegistryWatcher
from kubelet_standin.tests.stub import PATIENCE, Clock

DRIVER = "gpu.example.com"
FAST = DraTimings(reconcile=0.01, health_retry=0.01, first_retry=0.01, last_retry=0.02)

OLDER = [version for version in KubeletVersion if version is not KubeletVersion.V1_37]


VALID = {"type": "DRAPlugin", "name": DRIVER, "supported_versions": ["v1.DRAPlugin"]}


class Plugin(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stubs only
    """A driver of a few lines, with answers that tests change. It has the health service v1alpha1."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = dict(VALID)
        self.statuses: list[registration_pb.RegistrationStatus] = []
        self.answer: pb.NodePrepareResourcesResponse | None = None
        self.requests: list[tuple[str, list[str]]] = []
        self.health_calls = 0
        self.called = asyncio.Semaphore(0)
        self.held = asyncio.Event()
        self.held.set()

    @contextlib.asynccontextmanager
    async def serving(self, path: str) -> AsyncIterator[None]:
        """Serve on a socket inside the context."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self,))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Return the method below with the name of a call."""
        service, _, name = handler_call_details.method.rpartition("/")
        if name != "NodeWatchResources":
            return grpc.unary_unary_rpc_method_handler(getattr(self, name))
        return grpc.unary_stream_rpc_method_handler(self._watch) if service == "/v1alpha1.DRAResourceHealth" else None

    async def GetInfo(self, _request: bytes, _context: object) -> bytes:  # noqa: N802 - the RPC's name
        """Describe the driver."""
        return registration_pb.PluginInfo(**self.info).SerializeToString()

    async def NotifyRegistrationStatus(self, request: bytes, _context: object) -> bytes:  # noqa: N802 - the RPC's name
        """Record the outcome."""
        self.statuses.append(registration_pb.RegistrationStatus.FromString(request))
        return b""

    async def NodePrepareResources(self, request: bytes, _context: object) -> bytes:  # noqa: N802 - the RPC's name
        """Return a device for each claim, or ``answer``."""
        claims = pb.NodePrepareResourcesRequest.FromString(request).claims
        self.requests.append(("prepare", [claim.name for claim in claims]))
        self.called.release()
        await self.held.wait()
        device = pb.Device(pool_name="p", device_name="d", cdi_device_ids=["c"], request_names=["r"])
        result = pb.NodePrepareResourceResponse(devices=[device])
        usual = pb.NodePrepareResourcesResponse(claims={claim.uid: result for claim in claims})
        return (self.answer or usual).SerializeToString()

    async def NodeUnprepareResources(self, request: bytes, _context: object) -> bytes:  # noqa: N802 - the RPC's name
        """Succeed."""
        claims = pb.NodeUnprepareResourcesRequest.FromString(request).claims
        self.requests.append(("unprepare", [claim.name for claim in claims]))
        results = {claim.uid: pb.NodeUnprepareResourceResponse() for claim in claims}
        return pb.NodeUnprepareResourcesResponse(claims=results).SerializeToString()

    async def _watch(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        self.health_calls += 1
        yield b""


@pytest.fixture
def plugin() -> Plugin:
    """Return a driver that does not serve yet."""
    return Plugin()


def a_pod(name: str, *claims: str) -> DraPod:
    """Return a pod with claims."""
    return DraPod(name, tuple(DraClaim(claim, f"uid-{claim}", (DRIVER,)) for claim in claims or ("claim",)))


@contextlib.asynccontextmanager
async def registered(
    directory: str, plugin: Plugin, version: KubeletVersion = KubeletVersion.V1_37, timings: DraTimings = FAST
) -> AsyncIterator[DraKubelet]:
    """Run the driver and a kubelet that has registered it."""
    async with (
        plugin.serving(f"{directory}/gpu.sock"),
        DraKubelet(directory, version=version, timings=timings) as kubelet,
    ):
        await kubelet.wait_for(lambda k: k.connected(DRIVER), PATIENCE)
        yield kubelet


async def refused(kubelet: DraKubelet, text: str) -> None:
    """Wait for a registration with this outcome."""
    await kubelet.wait_for(lambda k: any(text in each.outcome for each in k.registrations), PATIENCE)


async def test_watcher_reports_sockets_as_inotify_does(kubelet_dir: str) -> None:
    """Those that exist, are created or moved to the directory tree, and are deleted; but no other files."""
    seen: list[str] = []
    os.mkdir(f"{kubelet_dir}/below")
    with contextlib.ExitStack() as stack:

        def bind(name: str) -> None:
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(f"{kubelet_dir}/{name}")

        def reported() -> list[str]:
            watcher.process(os.read(watcher.descriptor, 65536))
            found = [text.replace(f"{kubelet_dir}/", "") for text in seen]
            seen.clear()
            return found

        bind("first")
        bind("below/second")
        watcher = RegistryWatcher(kubelet_dir, lambda it: seen.append(f"+{it}"), lambda it: seen.append(f"-{it}"))
        stack.callback(watcher.close)
        bind(".hidden")
        os.rename(f"{kubelet_dir}/.hidden", f"{kubelet_dir}/shown")
        assert reported() == ["+below/second", "+first", "+shown"]
        os.mkdir(f"{kubelet_dir}/directory.sock")
        os.rename(f"{kubelet_dir}/first", f"{kubelet_dir}/.gone")
        bind("below/third")
        assert reported() == ["+below/third"]
        os.unlink(f"{kubelet_dir}/shown")
        os.unlink(f"{kubelet_dir}/below/third")
        assert reported() == ["-shown", "-below/third"]


async def test_watcher_survives_lost_events_and_removed_directories(kubelet_dir: str) -> None:
    """The kernel drops events of a full queue, and says so by one without a watch; the others are still reported."""
    seen: list[str] = []
    os.mkdir(f"{kubelet_dir}/below")
    watcher = RegistryWatcher(kubelet_dir, seen.append, seen.append)
    try:
        os.rmdir(f"{kubelet_dir}/below")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{kubelet_dir}/first")
        watcher.process(struct.pack("iIII", -1, 0x4000, 0, 0) + os.read(watcher.descriptor, 65536))
    finally:
        watcher.close()
    assert seen == [f"{kubelet_dir}/below", f"{kubelet_dir}/first"]
    assert list(watcher.directories.values()) == [kubelet_dir]


@pytest.mark.parametrize(
    ("supported", "chosen"),
    [
        (["v1.DRAPlugin", "v1beta1.DRAPlugin"], "v1.DRAPlugin"),
        (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1beta1.DRAPlugin"),
        (["v2.DRAPlugin", "v1beta1.DRAPlugin"], "v1beta1.DRAPlugin"),
    ],
)
async def test_first_service_of_the_driver_that_is_known_is_used(
    kubelet_dir: str, plugin: Plugin, supported: list[str], chosen: str
) -> None:
    plugin.info["supported_versions"] = supported
    async with registered(kubelet_dir, plugin) as kubelet:
        assert kubelet.drivers[DRIVER][0].service == chosen
        await kubelet.prepare(a_pod("a"))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("type", "CSIPlugin", "no handler registered for plugin type: CSIPlugin at socket"),
        ("supported_versions", [], "empty list of supported gRPC services"),
        ("supported_versions", ["v1beta1"], 'supported by the plugin (["v1beta1"]) are supported by the kubelet'),
    ],
)
async def test_invalid_driver_is_refused_until_it_is_valid(
    kubelet_dir: str, plugin: Plugin, field: str, value: object, text: str
) -> None:
    plugin.info[field] = value
    async with plugin.serving(f"{kubelet_dir}/gpu.sock"), DraKubelet(kubelet_dir, timings=FAST) as kubelet:
        await refused(kubelet, text)
        assert text in plugin.statuses[-1].error
        assert not plugin.statuses[-1].plugin_registered
        plugin.info = VALID
        await kubelet.wait_for(lambda k: k.connected(DRIVER), PATIENCE)
        assert plugin.statuses[-1].plugin_registered


async def test_endpoint_is_registered_once(kubelet_dir: str, plugin: Plugin) -> None:
    """The second socket is tried again."""
    plugin.info["endpoint"] = f"{kubelet_dir}/first.sock"
    async with (
        plugin.serving(f"{kubelet_dir}/first.sock"),
        plugin.serving(f"{kubelet_dir}/second.sock"),
        DraKubelet(kubelet_dir, timings=FAST) as kubelet,
    ):
        await refused(kubelet, f"endpoint {kubelet_dir}/first.sock already registered for DRA driver plugin {DRIVER}")
        await kubelet.wait_for(lambda k: len(k.registrations) > 3, PATIENCE)
        assert len(kubelet.drivers[DRIVER]) == 1


async def test_removed_socket_is_deregistered(kubelet_dir: str, plugin: Plugin) -> None:
    async with registered(kubelet_dir, plugin) as kubelet:
        os.unlink(f"{kubelet_dir}/gpu.sock")
        await kubelet.wait_for(lambda k: not k.drivers, PATIENCE)
        with pytest.raises(ClaimsError, match=f"DRA driver {DRIVER} is not registered"):
            await kubelet.prepare(a_pod("a"))


async def test_prepared_claim_is_not_prepared_again(kubelet_dir: str, plugin: Plugin) -> None:
    """For a second pod. It is unprepared after the last one, and only the checkpoint outlives the kubelet."""
    async with registered(kubelet_dir, plugin) as kubelet:
        await kubelet.prepare(a_pod("a"))
        await kubelet.prepare(a_pod("b"))
        assert plugin.requests == [("prepare", ["claim"])]
        assert kubelet.prepared == {"uid-claim"}
        await kubelet.restart()
        assert not kubelet.prepared
        assert kubelet.known_claims == {"uid-claim"}
        await kubelet.wait_for(lambda k: k.connected(DRIVER), PATIENCE)
        await kubelet.prepare(a_pod("a"))
        assert ("prepare", ["claim"]) in plugin.requests[1:]
        await kubelet.unprepare(a_pod("a"))
        assert plugin.requests[-1][0] == "prepare"
        await kubelet.unprepare(a_pod("b"))
        assert plugin.requests[-1] == ("unprepare", ["claim"])
        await kubelet.unprepare(a_pod("b"))
        assert kubelet.known_claims == frozenset()


async def test_answer_must_not_have_other_claims(kubelet_dir: str, plugin: Plugin) -> None:
    uids = ("uid-claim", "uid-x")
    plugin.answer = pb.NodePrepareResourcesResponse(claims={uid: pb.NodePrepareResourceResponse() for uid in uids})
    async with registered(kubelet_dir, plugin) as kubelet:
        with pytest.raises(ClaimsError, match="NodePrepareResources returned result for unknown claim UID uid-x"):
            await kubelet.prepare(a_pod("a"))


@pytest.mark.parametrize("version", KubeletVersion)
async def test_all_claims_of_a_failed_call_come_again(
    kubelet_dir: str, plugin: Plugin, version: KubeletVersion
) -> None:
    """Versions before 1.37 then have the devices of the first answer twice."""
    devices = [pb.Device(pool_name="p", device_name="d")]
    good, bad = pb.NodePrepareResourceResponse(devices=devices), pb.NodePrepareResourceResponse(error="no")
    game = a_pod("a", "x", "y")
    async with registered(kubelet_dir, plugin, version) as kubelet:
        plugin.answer = pb.NodePrepareResourcesResponse(claims={"uid-x": good})
        with pytest.raises(ClaimsError, match="skipped 1 ResourceClaims"):
            await kubelet.prepare(game)
        plugin.answer = pb.NodePrepareResourcesResponse(claims={"uid-x": good, "uid-y": bad})
        with pytest.raises(ClaimsError, match="NodePrepareResources failed for ResourceClaim y: no"):
            await kubelet.prepare(game)
        plugin.answer = pb.NodePrepareResourcesResponse(claims={"uid-x": good, "uid-y": good})
        await kubelet.prepare(game)
        assert plugin.requests == [("prepare", ["x", "y"])] * 3
        assert (len(kubelet.devices(game)) == 2) is version.resets_devices


@pytest.mark.parametrize("version", KubeletVersion)
async def test_pod_that_was_never_prepared_ends(kubelet_dir: str, plugin: Plugin, version: KubeletVersion) -> None:
    """Versions before 1.37 then unprepare a claim that another pod uses (kubernetes issue 140212)."""
    async with registered(kubelet_dir, plugin, version) as kubelet:
        await kubelet.prepare(a_pod("a"))
        await kubelet.unprepare(a_pod("never"))
        assert (kubelet.known_claims == {"uid-claim"}) is version.guards_unprepare


async def test_claim_with_the_name_of_another_one_is_refused(kubelet_dir: str, plugin: Plugin) -> None:
    """Until the old one is unprepared."""
    async with registered(kubelet_dir, plugin) as kubelet:
        await kubelet.prepare(a_pod("a"))
        successor = DraPod("b", (DraClaim("claim", "uid-new", (DRIVER,)),))
        with pytest.raises(ClaimsError, match="old ResourceClaim with same name claim and different UID uid-claim"):
            await kubelet.prepare(successor)
        await kubelet.unprepare(a_pod("a"))
        await kubelet.prepare(successor)


@pytest.mark.parametrize("version", KubeletVersion)
async def test_calls_of_pods_that_share_a_claim_overlap(
    kubelet_dir: str, plugin: Plugin, version: KubeletVersion
) -> None:
    async with registered(kubelet_dir, plugin, version) as kubelet:
        plugin.held.clear()
        async with asyncio.TaskGroup() as pods:
            pods.create_task(kubelet.prepare(a_pod("a")))
            pods.create_task(kubelet.prepare(a_pod("b")))
            for _ in range(2):
                await plugin.called.acquire()
            plugin.held.set()
        assert len(plugin.requests) == 2
        assert kubelet.prepared == {"uid-claim"}


@pytest.mark.parametrize("version", KubeletVersion)
async def test_health_service_that_was_not_announced(kubelet_dir: str, plugin: Plugin, version: KubeletVersion) -> None:
    """Kubelets 1.34 to 1.36 call it again and again, if the feature gate is on; later ones do not."""
    async with registered(kubelet_dir, plugin, version) as kubelet:
        if version is KubeletVersion.V1_36:
            await kubelet.wait_for(lambda _: plugin.health_calls > 2, PATIENCE)
        elif version is KubeletVersion.V1_37:
            assert kubelet.drivers[DRIVER][0].health_service == ""
        else:
            assert not kubelet.version.watches_health
    if version is not KubeletVersion.V1_36:
        assert plugin.health_calls == 0


async def test_health_service_that_does_not_exist_is_not_called_again(kubelet_dir: str, plugin: Plugin) -> None:
    """By kubelets from 1.37."""
    plugin.info["supported_versions"] = ["v1.DRAPlugin", "v1.DRAResourceHealth"]
    async with registered(kubelet_dir, plugin) as kubelet:
        assert kubelet.drivers[DRIVER][0].health_service == "v1.DRAResourceHealth"
        await kubelet.prepare(a_pod("a"))
        assert plugin.health_calls == 0


@pytest.mark.parametrize("version", KubeletVersion)
def test_health_is_unknown_after_a_timeout(clock: Clock, version: KubeletVersion) -> None:
    """That of the report. Its message counts from 1.36."""
    cache = HealthCache(version, 30.0, clock)
    device = health_pb.DeviceHealth(
        device=health_pb.DeviceIdentifier(pool_name="p", device_name="d"),
        health=health_pb.UNHEALTHY,
        health_check_timeout_seconds=60,
        message="m",
    )
    cache.update(DRIVER, health_pb.NodeWatchResourcesResponse(devices=[device]))
    assert cache.get(DRIVER, "p", "d") == ("Unhealthy", "" if version is KubeletVersion.V1_32 else "m")
    clock.now += 45
    assert cache.get(DRIVER, "p", "d").health == "Unhealthy"
    clock.now += 45
    assert cache.get(DRIVER, "p", "d") == ("Unknown", "")
    cache.update(DRIVER, health_pb.NodeWatchResourcesResponse(devices=[device]))
    cache.clear(DRIVER)
    assert cache.get(DRIVER, "p", "d").health == cache.get(DRIVER, "p", "other").health == "Unknown"


async def test_slices_are_deleted_at_the_start_and_after_an_absence(kubelet_dir: str, plugin: Plugin) -> None:
    """An error is repeated."""
    wiped: list[str] = []

    async def wipe(driver: str) -> None:
        wiped.append(driver)
        if len(wiped) < 3:
            raise OSError("no API server")

    timings = FAST._replace(wipe=0.0, wipe_retry=0.01)
    async with DraKubelet(kubelet_dir, timings=timings, wipe=wipe) as kubelet:
        await kubelet.wait_for(lambda _: wiped == [""] * 3, PATIENCE)
        async with plugin.serving(f"{kubelet_dir}/a.sock"):
            await kubelet.wait_for(lambda k: k.connected(DRIVER), PATIENCE)
            wiped.clear()
        await kubelet.wait_for(lambda _: wiped, PATIENCE)
        assert set(wiped) == {DRIVER}


async def test_slices_of_a_driver_that_comes_back_are_kept(kubelet_dir: str, plugin: Plugin) -> None:
    async with DraKubelet(kubelet_dir, timings=FAST) as kubelet:
        pending = kubelet._running().drivers._pending
        async with plugin.serving(f"{kubelet_dir}/a.sock"):
            await kubelet.wait_for(lambda k: k.connected(DRIVER), PATIENCE)
            assert not pending
        await kubelet.wait_for(lambda _: pending, PATIENCE)
        deletion = pending[DRIVER]
        async with plugin.serving(f"{kubelet_dir}/b.sock"):
            await kubelet.wait_for(lambda k: k.connected(DRIVER), PATIENCE)
            assert deletion.cancelled()
            assert not pending


async def test_kubelet_uses_an_api_server(kubelet_dir: str, plugin: Plugin) -> None:
    """It deletes the slices of its node alone, or of one driver there, and prepares the claim that the server has."""
    slices = f"{API}/resourceslices"

    async with ApiServer() as server:

        def create(name: str, node: str = "worker", driver: str = DRIVER) -> None:
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "d"}]}
            server.objects.create(slices, {"metadata": {"name": name}, "spec": spec})

        def names() -> list[str]:
            return [each["metadata"]["name"] for each in server.objects.list(slices)]

        create("ours")
        create("theirs", node="other")
        results = [{"request": "r", "driver": DRIVER, "pool": "worker", "device": "d"}]
        claim = {"metadata": {"name": "claim"}, "status": {"allocation": {"devices": {"results": results}}}}
        created = server.objects.create(f"{API}/namespaces/default/resourceclaims", claim)
        api = NodeApi(server, "worker")
        async with (
            plugin.serving(f"{kubelet_dir}/gpu.sock"),
            DraKubelet(kubelet_dir, timings=FAST, wipe=api.wipe, fetch=api.fetch) as kubelet,
        ):
            await server.wait_for(lambda _: names() == ["theirs"])
            create("ours")
            create("of-another-driver", driver="net.example.com")
            await api.wipe(DRIVER)
            assert names() == ["of-another-driver", "theirs"]
            await kubelet.wait_for(lambda k: k.connected(DRIVER), PATIENCE)
            await kubelet.prepare(a_pod("a"))
            assert kubelet.prepared == {created["metadata"]["uid"]}
            await server.stop()
            with pytest.raises(ClaimsError, match="fetch ResourceClaim claim: the API server is stopped"):
                await kubelet.prepare(a_pod("b"))


@pytest.mark.parametrize("version", OLDER)
async def test_lost_confirmation_leaves_the_driver_registered(
    kubelet_dir: str, plugin: Plugin, version: KubeletVersion
) -> None:
    """In kubelets before 1.36: the driver does not know. Later ones register it again."""
    async with plugin.serving(f"{kubelet_dir}/gpu.sock"):
        kubelet = DraKubelet(kubelet_dir, version=version, timings=FAST)
        kubelet.faults.skip_notify = True
        async with kubelet:
            await refused(kubelet, "failed to send registration status")
            if version.repeats_failed_registration:
                kubelet.faults.skip_notify = False
                await kubelet.wait_for(lambda k: k.connected(DRIVER), PATIENCE)
            else:
                await kubelet.wait_for(lambda k: k.drivers[DRIVER][0].connected, PATIENCE)
                assert not kubelet.registered(DRIVER)
                assert plugin.statuses == []
