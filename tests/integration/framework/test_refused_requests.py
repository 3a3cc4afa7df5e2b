"""What a request for a claim has used is free as soon as it fails."""

import logging

import grpc
import pytest

from aosp_plugin.framework.api import dra_pb2
from aosp_plugin.framework.dra.kubelet_service import CLAIM_SERVICES
from kubelet_standin.apiserver import Refuse
from tests.claims import DirectoryBackend
from tests.dra_node import DraNode
from tests.leaks import nothing_kept

PREPARE, UNPREPARE = (f"/{CLAIM_SERVICES[0]}/Node{name}Resources" for name in ("Prepare", "Unprepare"))
CLAIMS = {"prepared": "phone0", "free": "phone1"}
"""Claims of the API server by name, and the device of each."""


async def outcome(channel: grpc.aio.Channel, method: str, data: bytes) -> str:
    """Send a request, and return the status code of its answer."""
    call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)(data)
    return (await call.code()).name


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
    node: DraNode, monkeypatch: pytest.MonkeyPatch, method: str, name: str, code: str
) -> None:
    """The API server does not know the claim, at once or after a retry; the backend fails; or nothing is a claim."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # a record has the traceback of its error
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
