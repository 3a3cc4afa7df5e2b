"""What a request has used is free as soon as it is refused: no reference cycle keeps it until the next collection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import grpc
import psutil
import pytest

from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import dra_pb2
from aosp_plugin.framework.backend import ContainerEdits
from aosp_plugin.framework.dra.kubelet_service import CLAIM_SERVICES
from aosp_plugin.framework.listed import FoundListed
from aosp_plugin.framework.runtime import Runtime
from kubelet_standin import Kubelet
from kubelet_standin.apiserver import Refuse
from tests.claims import DirectoryBackend
from tests.dra_node import DraNode
from tests.support import IN_LIFE, RESOURCE, DeviceDirectory, Serve, connected, listed, names, run, until

PREPARE, UNPREPARE = (f"/{CLAIM_SERVICES[0]}/Node{name}Resources" for name in ("Prepare", "Unprepare"))
CLAIMS = {"prepared": "phone0", "free": "phone1"}
"""Claims of the API server by name, and the device of each."""


def kept() -> Counter[str]:
    """Count the objects of the types of which a request that has ended leaves none, in the whole process.

    They are errors, but not those of the client, and gRPC's contexts, which handlers refer to as to their requests.
    """
    return Counter(
        type(each).__name__
        for each in gc.get_objects()
        if type(each).__name__ == "_ServicerContext"
        or (isinstance(each, BaseException) and not isinstance(each, grpc.RpcError))
    )


@contextlib.asynccontextmanager
async def nothing_kept() -> AsyncIterator[None]:
    """Check that what runs inside the context leaves nothing, although nothing is collected meanwhile."""
    logging.disable()  # a record of an unexpected error has its traceback
    gc.collect()
    gc.disable()
    before = kept()
    try:
        yield
        with contextlib.suppress(TimeoutError):
            await until(lambda: kept() <= before)
        assert not kept() - before
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


async def outcome(channel: grpc.aio.Channel, method: str, data: bytes) -> str:
    """Send a request, and return the status code of its answer."""
    call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)(data)
    return (await call.code()).name


def allocate(*ids: str) -> bytes:
    """Return an Allocate request of one container."""
    containers = [pb.ContainerAllocateRequest(devices_ids=ids)]
    return pb.AllocateRequest(container_requests=containers).SerializeToString()


def pre_start(*ids: str) -> bytes:
    """Return a PreStartContainer request."""
    return pb.PreStartContainerRequest(devices_ids=ids).SerializeToString()


class BrokenDevices(ListedDevices):
    """One device, which no container gets."""

    pre_start_required = True

    def __init__(self, error: type[Exception]) -> None:
        super().__init__(RESOURCE, lambda: ["/dev/thing0"])
        self._error = error

    def allocate(self, _found: FoundListed, ids: Sequence[str]) -> ContainerEdits:
        """Raise the error."""
        raise self._error(ids)

    def pre_start(self, _found: FoundListed, ids: Sequence[str]) -> None:
        """Raise the error."""
        raise self._error(ids)


@pytest.mark.parametrize(
    ("error", "method", "data", "code"),
    [
        (OSError, "Allocate", b"\xff", "INVALID_ARGUMENT"),
        (OSError, "Allocate", b"", "INVALID_ARGUMENT"),
        (OSError, "Allocate", allocate(*names(range(50_000))), "NOT_FOUND"),
        (OSError, "Allocate", allocate("thing0"), "INTERNAL"),
        (ValueError, "Allocate", allocate("thing0"), "UNKNOWN"),
        (OSError, "GetPreferredAllocation", b"", "INVALID_ARGUMENT"),
        (OSError, "PreStartContainer", pre_start("other"), "NOT_FOUND"),
        (OSError, "PreStartContainer", pre_start("thing0"), "INTERNAL"),
        (ValueError, "PreStartContainer", pre_start("thing0"), "UNKNOWN"),
    ],
)
async def test_request_to_the_device_plugin_leaves_nothing_when_it_is_refused(
    kubelet: Kubelet, error: type[Exception], method: str, data: bytes, code: str
) -> None:
    gc.collect()  # what other tests have left
    async with run(DevicePlugin(BrokenDevices(error), kubelet_dir=kubelet.directory, runtime=Runtime(timings=IN_LIFE))):
        await listed(kubelet, 1)
        assert kept()["_ServicerContext"], "that of ListAndWatch"
        async with connected(kubelet) as channel, nothing_kept():
            for _ in range(3):
                assert await outcome(channel, f"/v1beta1.DevicePlugin/{method}", data) == code


def claim_request(name: str, uid: str) -> bytes:
    """Return a request for a claim, to prepare or to unprepare it."""
    return dra_pb2.NodePrepareResourcesRequest(
        claims=[dra_pb2.Claim(namespace="default", name=name, uid=uid)]
    ).SerializeToString()


@pytest.mark.parametrize(
    ("method", "name", "code"),
    [
        (PREPARE, "unknown", "OK"),  # the error is in the answer
        (PREPARE, "unavailable", "OK"),
        (PREPARE, "claim-free", "OK"),
        (UNPREPARE, "claim-prepared", "OK"),
        (PREPARE, "malformed", "UNKNOWN"),
        (UNPREPARE, "malformed", "UNKNOWN"),
    ],
)
async def test_request_for_a_claim_leaves_nothing_when_it_fails(
    node: DraNode, method: str, name: str, code: str
) -> None:
    """The API server does not know the claim, at once or after a retry; the backend fails; or nothing is a claim."""
    backend = DirectoryBackend(node.directory / "phones")
    uids = {f"claim-{name}": node.create_claim(name, [phone]).uid for name, phone in CLAIMS.items()}
    async with node.running(backend):
        (socket,) = node.directory.joinpath("plugins_registry").glob("*.sock")
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            prepared = claim_request("claim-prepared", uids["claim-prepared"])
            assert await outcome(channel, PREPARE, prepared) == "OK"
            backend.fail = {"prepare", "unprepare"}
            data = b"\xff" if name == "malformed" else claim_request(name, uids.get(name, "uid"))
            async with nothing_kept():
                for _ in range(3):
                    if name == "unavailable":
                        node.server.faults.add(Refuse(), verb="get", resource="resourceclaims", times=1)
                    assert await outcome(channel, method, data) == code
                backend.fail = set()  # rounds of repairs would go on to raise errors


async def test_giant_requests_do_not_grow_the_process(device_directory: DeviceDirectory, kubelet: Kubelet) -> None:
    """Each is refused, and would take a megabyte if something kept it."""
    async with Serve(device_directory, kubelet.directory) as serve:
        await listed(kubelet, 0)
        log = asyncio.create_task(serve.finish())
        process = psutil.Process(serve.process.pid)
        async with connected(kubelet) as channel:
            data, before = allocate("x" * 1_000_000), process.memory_info().rss
            for _ in range(320):
                assert await outcome(channel, "/v1beta1.DevicePlugin/Allocate", data) == "NOT_FOUND"
            grown = process.memory_info().rss - before
        serve.process.terminate()
        assert await log == 0
    assert grown < 20_000_000
