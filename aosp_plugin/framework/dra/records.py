"""What a driver records of a claim that it prepares. All values are immutable, and may be read in any thread."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from aosp_plugin.framework.backend import ClaimParameters

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


class DeviceRecord(msgspec.Struct, frozen=True):
    """A device that is allocated to a claim."""

    id: str
    pool: str
    name: str
    """Name in the ResourceSlice."""


class ParametersRecord(msgspec.Struct, frozen=True):
    """Parameters of a request: ``backend.ClaimParameters`` with a JSON value."""

    source: Literal["class", "claim"]
    content: Any


class RequestRecord(msgspec.Struct, frozen=True):
    """A request of a claim, with what is allocated for it."""

    name: str
    """As in the allocation: REQUEST, or REQUEST/SUBREQUEST for an alternative of a request."""
    devices: tuple[DeviceRecord, ...]
    parameters: tuple[ParametersRecord, ...] = ()
    """The strongest last."""

    @property
    def main_name(self) -> str:
        """The name without that of the subrequest, which containers refer to."""
        return self.name.partition("/")[0]

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs of the devices."""
        return tuple(device.id for device in self.devices)

    @property
    def claim_parameters(self) -> tuple[ClaimParameters, ...]:
        """The parameters as a backend gets them."""
        return tuple(ClaimParameters(each.source, each.content) for each in self.parameters)


class ClaimRecord(msgspec.Struct, frozen=True):
    """A claim that is prepared, or whose preparation has started."""

    uid: str
    namespace: str
    name: str
    state: Literal["started", "completed"]
    """started: the preparation has not ended, or the process ended in it; what exists of it has to be removed."""
    requests: tuple[RequestRecord, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs of all devices."""
        return tuple(device_id for request in self.requests for device_id in request.ids)

    @property
    def devices(self) -> frozenset[tuple[str, str]]:
        """Pool and name of each device."""
        return frozenset((device.pool, device.name) for request in self.requests for device in request.devices)

    @property
    def completed(self) -> bool:
        """Whether the claim is prepared."""
        return self.state == "completed"

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"

    @property
    def label(self) -> str:
        """The claim as error messages name it."""
        return f"{self.full_name} (UID {self.uid})"

    def with_state(self, state: Literal["started", "completed"]) -> ClaimRecord:
        """Return the same record in another state."""
        return msgspec.structs.replace(self, state=state)


def boot_id(path: str = BOOT_ID_FILE) -> str:
    """Return what distinguishes this boot of the host from others. Blocks; raises OSError."""
    with open(path, encoding="ascii") as file:
        return file.read().strip()
