"""Claims that are allocated by their status, without a scheduler and pods, and the kubelet's calls for them."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import grpc

from aosp_plugin.framework.api import dra_pb2 as pb
from tests.e2e.cluster.dra import API, CLAIMS, SLICES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from tests.e2e.cluster.api import Api

_SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_SECONDS: Final = 45.0
"""The kubelet's deadline (pkg/kubelet/cm/dra/plugin/dra_plugin.go)."""
_THREADS: Final = 8
_NUMBERS: Final = itertools.count(1)


class Claim(NamedTuple):
    """A claim as the kubelet names it."""

    name: str
    uid: str


def create(api: Api, driver: str, count: int) -> list[Claim]:
    """Create claims that have one of a driver's devices each."""
    slices = [found["spec"] for found in api.list(SLICES) if found["spec"]["driver"] == driver]
    free = [(spec["pool"]["name"], device["name"]) for spec in slices for device in spec["devices"]]
    with ThreadPoolExecutor(_THREADS) as executor:
        return list(executor.map(lambda device: _create(api, driver, *device), free[:count]))


def remove(api: Api, claims: Sequence[Claim]) -> None:
    """Delete claims."""
    with ThreadPoolExecutor(_THREADS) as executor:
        list(executor.map(lambda claim: api.delete(f"{CLAIMS}/{claim.name}"), claims))


def _create(api: Api, driver: str, pool: str, device: str) -> Claim:
    name = f"claim-{next(_NUMBERS)}"
    body = {"metadata": {"name": name}, "spec": _spec(class_name(driver))}
    uid = api.create(CLAIMS, body)["metadata"]["uid"]
    result = {"request": "device", "driver": driver, "pool": pool, "device": device}
    api.patch(f"{CLAIMS}/{name}/status", {"status": {"allocation": {"devices": {"results": [result]}}}})
    return Claim(name, uid)


def _spec(name: str) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": name}}]}}


def class_name(driver: str) -> str:
    """Return the name of the DeviceClass of a driver's devices."""
    return f"class.{driver}"


def create_class(api: Api, driver: str) -> None:
    """Create the DeviceClass of a driver's devices, and a template of claims with the same name."""
    name = class_name(driver)
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    api.create(f"{API}/deviceclasses", {"metadata": {"name": name}, "spec": {"selectors": [selector]}})
    template = {"metadata": {"name": name}, "spec": {"spec": _spec(name)}}
    api.create(f"{API}/namespaces/default/resourceclaimtemplates", template)


class Caller:
    """A connection to a driver's socket, over which all calls go, as over the kubelet's."""

    def __init__(self, socket: Path) -> None:
        """Connect to the socket with the next call."""
        self._channel = grpc.insecure_channel(f"unix:{socket}", [("grpc.default_authority", "localhost")])
        self._prepare, self._unprepare = (
            self._channel.unary_unary(f"/{_SERVICE}/{name}", request.SerializeToString, response.FromString)
            for name, request, response in (
                ("NodePrepareResources", pb.NodePrepareResourcesRequest, pb.NodePrepareResourcesResponse),
                ("NodeUnprepareResources", pb.NodeUnprepareResourcesRequest, pb.NodeUnprepareResourcesResponse),
            )
        )

    def __enter__(self) -> Self:
        """Wait for the connection."""
        grpc.channel_ready_future(self._channel).result(_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self._channel.close()

    def prepare(self, claim: Claim) -> float:
        """Prepare a claim, and return the seconds."""
        return _finish(claim, self._prepare.future(pb.NodePrepareResourcesRequest(claims=[_named(claim)]), _SECONDS))

    def unprepare(self, claim: Claim) -> float:
        """Unprepare a claim, and return the seconds."""
        request = pb.NodeUnprepareResourcesRequest(claims=[_named(claim)])
        return _finish(claim, self._unprepare.future(request, _SECONDS))

    def prepare_at_once(self, claims: Sequence[Claim]) -> float:
        """Prepare all claims at once, and return the seconds until the last answer."""
        started = time.perf_counter()
        requests = [pb.NodePrepareResourcesRequest(claims=[_named(claim)]) for claim in claims]
        for claim, answer in [
            (claim, self._prepare.future(request, _SECONDS)) for claim, request in zip(claims, requests, strict=True)
        ]:
            _finish(claim, answer)
        return time.perf_counter() - started


def _named(claim: Claim) -> pb.Claim:
    return pb.Claim(namespace="default", uid=claim.uid, name=claim.name)


def _finish(claim: Claim, answer: Any) -> float:
    """Wait for an answer, and return the seconds."""
    started = time.perf_counter()
    error = answer.result().claims[claim.uid].error
    assert not error, f"{claim.name}: {error}"
    return time.perf_counter() - started
