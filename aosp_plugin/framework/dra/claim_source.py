"""ResourceClaims of the API server: what a driver reads of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from aosp_plugin.framework.apiserver import paths
from aosp_plugin.framework.apiserver.errors import ApiError, NotFoundError

if TYPE_CHECKING:
    from aosp_plugin.framework.dra.records import ClaimRecord

T = TypeVar("T")


class Opaque(msgspec.Struct, frozen=True):
    """Parameters for a driver (OpaqueDeviceConfiguration)."""

    driver: str
    parameters: Any = None


class Configuration(msgspec.Struct, frozen=True):
    """An entry of the configuration of an allocation (DeviceAllocationConfiguration)."""

    source: str = ""
    """FromClass or FromClaim."""
    requests: tuple[str, ...] = ()
    """Names of requests or subrequests; empty for all."""
    opaque: Opaque | None = None


class Result(msgspec.Struct, frozen=True, rename="camel"):
    """A device that is allocated for a request (DeviceRequestAllocationResult)."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")


class DeviceAllocation(msgspec.Struct, frozen=True):
    """The devices of an allocation, of all drivers."""

    results: tuple[Result, ...] = ()
    config: tuple[Configuration, ...] = ()


class Allocation(msgspec.Struct, frozen=True):
    """What the scheduler has allocated to a claim."""

    devices: DeviceAllocation = DeviceAllocation()


class ClaimStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a claim."""

    allocation: Allocation | None = None
    reserved_for: tuple[dict[str, Any], ...] = ()
    """The pods that may use the claim."""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of a claim."""

    uid: str
    name: str = ""
    namespace: str = ""
    deletion_timestamp: str | None = None


class Claim(msgspec.Struct, frozen=True):
    """A ResourceClaim (staging/src/k8s.io/api/resource/v1/types.go)."""

    metadata: Metadata
    status: ClaimStatus = ClaimStatus()

    @property
    def results(self) -> tuple[Result, ...]:
        """The allocated devices of all drivers; empty if the claim is not allocated."""
        allocation = self.status.allocation
        return allocation.devices.results if allocation is not None else ()


class ClaimSource(Protocol):
    """Where a driver gets claims from. Belongs to the event loop."""

    async def get_claim(self, namespace: str, name: str) -> Claim:
        """Return a claim. Raises ApiError; NotFoundError if it does not exist."""


class _Client(Protocol):
    """The part of ``apiserver.client.ApiClient`` that is needed."""

    async def get(self, path: str, type: type[T]) -> T: ...  # noqa: A002 - as in msgspec


class ApiClaimSource:
    """Claims by GET from the API server."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    async def get_claim(self, namespace: str, name: str) -> Claim:
        """Return a claim. Raises ApiError; NotFoundError if it does not exist; ValueError if a name is invalid."""
        return await self._client.get(paths.object_path(paths.resource_claims(namespace), name), Claim)


async def still_needed(source: ClaimSource, record: ClaimRecord, driver: str) -> bool | None:
    """Return whether a claim exists and has the devices that its record has; None if the API server cannot tell.

    A claim that is not allocated any more, or has got other devices, does not need those of its record. An answer 404
    that is not the API's, for example of a proxy, counts as none.
    """
    try:
        claim = await source.get_claim(record.namespace, record.name)
    except NotFoundError as error:
        return False if error.reason == "NotFound" else None
    except ApiError:
        return None
    devices = frozenset((result.pool, result.device) for result in claim.results if result.driver == driver)
    return claim.metadata.uid == record.uid and devices == record.devices
