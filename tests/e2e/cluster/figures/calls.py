"""Calls of a DRA driver as the kubelet makes them: NodePrepareResources and NodeUnprepareResources, a claim each."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import grpc

from aosp_plugin.framework.api import dra_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from tests.e2e.cluster.figures.claims import Claim

_SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_SECONDS: Final = 45.0
"""The kubelet's deadline (pkg/kubelet/cm/dra/plugin/dra_plugin.go)."""


class Batch(NamedTuple):
    """The result of calls that were made at once."""

    latencies: list[float]
    """Seconds from the first call to each answer."""
    failed: list[str]
    """The errors of the calls that failed."""


class Caller:
    """A connection to a driver's socket, over which all calls go, as over the kubelet's."""

    def __init__(self, socket: Path) -> None:
        """Connect to the socket with the next call."""
        self._channel = grpc.insecure_channel(f"unix:{socket}", [("grpc.default_authority", "localhost")])
        self.prepare = self._method(
            "NodePrepareResources", pb.NodePrepareResourcesRequest, pb.NodePrepareResourcesResponse
        )
        self.unprepare = self._method(
            "NodeUnprepareResources", pb.NodeUnprepareResourcesRequest, pb.NodeUnprepareResourcesResponse
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

    def _method(self, name: str, request: Any, response: Any) -> Callable[[Claim], Any]:
        call = self._channel.unary_unary(f"/{_SERVICE}/{name}", request.SerializeToString, response.FromString)

        def start(claim: Claim) -> Any:
            wanted = pb.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)
            return call.future(request(claims=[wanted]), timeout=_SECONDS)

        return start


def in_turn(method: Callable[[Claim], Any], claims: Sequence[Claim]) -> list[float]:
    """Call a method for one claim after the other, and return the seconds of each call."""
    latencies = []
    for claim in claims:
        started = time.perf_counter()
        answer = method(claim).result()
        latencies.append(time.perf_counter() - started)
        assert not (error := answer.claims[claim.uid].error), f"{claim.name}: {error}"
    return latencies


def at_once(method: Callable[[Claim], Any], claims: Sequence[Claim]) -> Batch:
    """Call a method for all claims at once."""
    latencies: list[float] = []
    done = threading.Semaphore(0)

    def answered(_: object) -> None:
        latencies.append(time.perf_counter() - started)
        done.release()

    started = time.perf_counter()
    futures = [method(claim) for claim in claims]
    for future in futures:
        future.add_done_callback(answered)
    for _ in futures:
        done.acquire()
    failed = [text for claim, future in zip(claims, futures, strict=True) if (text := _error(claim, future))]
    return Batch(latencies, failed)


def _error(claim: Claim, future: Any) -> str:
    return str(future.exception() or future.result().claims[claim.uid].error)
