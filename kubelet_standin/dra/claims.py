"""The stand-in kubelet's DRA manager: prepares and unprepares the claims of pods (pkg/kubelet/cm/dra/manager.go)."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from kubelet_standin.api import dra_pb2 as pb
from kubelet_standin.dra.drivers import DriverError, Drivers, Setup

Fetch = Callable[[str, str], Awaitable["DraClaim"]]


class ClaimsError(Exception):
    """The claims of a pod could not be prepared or unprepared. The message is that of the pod's event."""


class DraClaim(NamedTuple):
    """An allocated ResourceClaim."""

    name: str
    uid: str
    drivers: tuple[str, ...]
    """The drivers of the allocated devices."""
    namespace: str = "default"

    @classmethod
    def from_object(cls, claim: Mapping[str, Any]) -> Self:
        """Return the claim that the API server returned. Raises ClaimsError if it is not allocated."""
        metadata = claim["metadata"]
        allocation = claim.get("status", {}).get("allocation")
        if allocation is None:
            raise ClaimsError(f"ResourceClaim {metadata['name']}: not allocated")
        results = allocation.get("devices", {}).get("results", ())
        drivers = tuple(dict.fromkeys(result["driver"] for result in results))
        return cls(metadata["name"], metadata["uid"], drivers, metadata.get("namespace", "default"))


@dataclass(frozen=True)
class DraPod:
    """A pod with claims."""

    name: str
    claims: tuple[DraClaim, ...]
    uid: str = ""

    def __post_init__(self) -> None:
        """Give a pod without a UID one."""
        if not self.uid:
            object.__setattr__(self, "uid", f"uid-of-{self.name}")


class ClaimDevice(NamedTuple):
    """A device of a prepared claim, as the driver returned it."""

    driver: str
    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_devices: tuple[str, ...]


@dataclass
class ClaimInfo:
    """What the kubelet knows of a claim. It is in its checkpoint, but for ``prepared`` and ``unpreparing``."""

    claim: DraClaim
    pods: set[str] = field(default_factory=set)
    """UIDs of the pods that use it."""
    devices: list[ClaimDevice] = field(default_factory=list)
    prepared: bool = False
    unpreparing: bool = False

    def checkpointed(self) -> ClaimInfo:
        """Return what a restarted kubelet knows."""
        return dataclasses.replace(
            self, pods=set(self.pods), devices=list(self.devices), prepared=False, unpreparing=False
        )


class DraManager:
    """The claims of the pods of one run of the kubelet."""

    def __init__(
        self, drivers: Drivers, setup: Setup, infos: dict[tuple[str, str], ClaimInfo], fetch: Fetch | None
    ) -> None:
        """``infos`` is the checkpoint, by namespace and name of the claims; it is kept up to date."""
        self._drivers = drivers
        self._setup = setup
        self._infos = infos
        self._fetch = fetch

    async def prepare(self, pod: DraPod) -> None:
        """Prepare the claims of a pod that are not prepared yet. Raises ClaimsError; all are to be tried again then."""
        claims = [await self._checked(claim) for claim in pod.claims]
        infos = [self._referenced(claim, pod) for claim in claims]
        new = [info for info in infos if not info.prepared]
        for driver, batch in self._batches(new):
            await self._prepare(driver, batch)
        for info in new:
            info.prepared = True
            self._setup.emit("claim-prepared", claim=info.claim.name, uid=info.claim.uid)

    async def unprepare(self, pod: DraPod) -> None:
        """Unprepare the claims of a pod that no other pod uses. Raises ClaimsError."""
        last: list[ClaimInfo] = []
        for claim in pod.claims:
            info = self._infos.get((claim.namespace, claim.name))
            if info is None or (self._setup.version.guards_unprepare and pod.uid not in info.pods):
                continue
            if len(info.pods) > 1:
                info.pods.discard(pod.uid)
                continue
            info.unpreparing = self._setup.version.guards_unprepare
            last.append(info)
        for driver, batch in self._batches(last):
            await self._unprepare(driver, batch)
        for info in last:
            self._infos.pop((info.claim.namespace, info.claim.name), None)
            self._setup.emit("claim-unprepared", claim=info.claim.name, uid=info.claim.uid)

    async def _checked(self, claim: DraClaim) -> DraClaim:
        """Return the claim as it is now, if its drivers are registered."""
        if self._fetch is not None:
            try:
                claim = await self._fetch(claim.namespace, claim.name)
            except Exception as error:
                raise ClaimsError(f"fetch ResourceClaim {claim.name}: {error}") from error
        for driver in claim.drivers:
            try:
                self._drivers.get(driver)
            except DriverError as error:
                raise ClaimsError(str(error)) from None
        return claim

    def _referenced(self, claim: DraClaim, pod: DraPod) -> ClaimInfo:
        info = self._infos.setdefault((claim.namespace, claim.name), ClaimInfo(claim))
        if info.claim.uid != claim.uid:
            raise ClaimsError(
                f"old ResourceClaim with same name {claim.name} and different UID {info.claim.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        if info.unpreparing:
            raise ClaimsError(f"ResourceClaim {claim.name} is being unprepared")
        info.pods.add(pod.uid)
        return info

    def _batches(self, infos: Iterable[ClaimInfo]) -> Sequence[tuple[str, list[ClaimInfo]]]:
        """Return the claims of each driver; the order of the drivers is random, as that of Go's maps is."""
        batches: dict[str, list[ClaimInfo]] = {}
        for info in infos:
            for driver in info.claim.drivers:
                batches.setdefault(driver, []).append(info)
        return self._setup.rng.sample(list(batches.items()), len(batches))

    async def _prepare(self, driver: str, batch: list[ClaimInfo]) -> None:
        request = pb.NodePrepareResourcesRequest(claims=_claims(batch))
        response = await self._call(driver, "NodePrepareResources", request, pb.NodePrepareResourcesResponse)
        for uid, info in self._matched("NodePrepareResources", batch, response.claims):
            if self._setup.version.resets_devices:
                info.devices = [device for device in info.devices if device.driver != driver]
            info.devices += [
                ClaimDevice(
                    driver,
                    device.pool_name,
                    device.device_name,
                    tuple(device.request_names),
                    tuple(device.cdi_device_ids),
                )
                for device in response.claims[uid].devices
            ]

    async def _unprepare(self, driver: str, batch: list[ClaimInfo]) -> None:
        request = pb.NodeUnprepareResourcesRequest(claims=_claims(batch))
        response = await self._call(driver, "NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse)
        for _ in self._matched("NodeUnprepareResources", batch, response.claims):
            pass

    async def _call(self, driver: str, method: str, request: Any, response: Any) -> Any:
        """Call the driver; return its response. Raises ClaimsError."""
        self._setup.emit("driver-called", driver=driver, method=method, claims=tuple(c.uid for c in request.claims))
        try:
            return await self._drivers.get(driver).call(method, request, response)
        except DriverError as error:
            raise ClaimsError(str(error)) from None

    def _matched(
        self,
        method: str,
        batch: Sequence[ClaimInfo],
        results: Mapping[str, pb.NodePrepareResourceResponse | pb.NodeUnprepareResourceResponse],
    ) -> Iterator[tuple[str, ClaimInfo]]:
        """Yield UID and claim of each result, in random order, up to the first error. Raises ClaimsError."""
        by_uid = {info.claim.uid: info for info in batch}
        for uid in self._setup.rng.sample(sorted(results), len(results)):
            if uid not in by_uid:
                raise ClaimsError(f"{method} returned result for unknown claim UID {uid}")
            if results[uid].error:
                raise ClaimsError(f"{method} failed for ResourceClaim {by_uid[uid].claim.name}: {results[uid].error}")
            yield uid, by_uid[uid]
        if len(results) != len(batch):
            raise ClaimsError(f"{method} skipped {len(batch) - len(results)} ResourceClaims")


def devices_of(pod: DraPod, request: str, infos: Mapping[tuple[str, str], ClaimInfo]) -> tuple[ClaimDevice, ...]:
    """Return the devices of a container that uses a request of the pod's claims, or with an empty one all requests."""
    found = (infos.get((claim.namespace, claim.name)) for claim in pod.claims)
    return tuple(
        device
        for info in found
        if info is not None
        for device in info.devices
        if not request or not device.requests or request in device.requests
    )


def _claims(batch: Sequence[ClaimInfo]) -> list[pb.Claim]:
    return [pb.Claim(namespace=info.claim.namespace, uid=info.claim.uid, name=info.claim.name) for info in batch]
