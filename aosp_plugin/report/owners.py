"""The UIDs of the pods that own devices, according to the kubelet's checkpoints.

The podresources API does not name the UIDs, by which a process in a container is known.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

from aosp_plugin.errors import HostError
from aosp_plugin.framework.dra import driver_names

if TYPE_CHECKING:
    from collections.abc import Collection

PodUids: TypeAlias = "dict[str, frozenset[str]]"
"""By device ID."""

CHECKPOINT = "kubelet_internal_checkpoint"
"""File in the kubelet's device plugin directory, readable by root only (pkg/kubelet/cm/devicemanager/types.go)."""

CLAIMS_CHECKPOINT = "dra_manager_state"
"""File in the kubelet's root directory, readable by root only (pkg/kubelet/cm/dra/manager.go)."""


def parse_checkpoint(checkpoint: bytes, resources: Collection[str]) -> PodUids:
    """Return the UIDs of the pods that own each device ID of ``resources``. Raises HostError if it cannot be parsed.

    Device IDs are grouped by NUMA node since 1.20 (pkg/kubelet/cm/devicemanager/checkpoint). The kubelet replaces the
    file atomically, and writes it when it first lists a plugin: a missing file means unknown owners, not none.
    """
    owners: PodUids = {}
    try:
        for entry in _decoded(checkpoint)["Data"]["PodDeviceEntries"] or ():
            devices = itertools.chain.from_iterable(entry["DeviceIDs"].values())
            for device in devices if entry["ResourceName"] in resources else ():
                owners[device] = owners.get(device, frozenset()) | {entry["PodUID"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostError(f"{CHECKPOINT} does not have the format of kubelet 1.20 or later: {error!r}") from error
    return owners


def parse_claims_checkpoint(checkpoint: bytes, driver: str, ids: Collection[str]) -> PodUids:
    """Return the UIDs of the pods that have each device of ``driver`` by a claim, as of the file's last version.

    ``ids`` are the known device IDs. The kubelet writes the file before it prepares a claim
    (pkg/kubelet/cm/dra/state/checkpoint.go); ``Data`` in it is JSON as text. Raises HostError if it cannot be parsed.
    """
    owners: PodUids = {}
    try:
        claims = _decoded(_decoded(checkpoint)["Data"])["ClaimInfoStateList"] or ()
        known = driver_names.ids_by_name(ids)
        for claim in claims:
            for device in (claim["DriverState"] or {}).get(driver, {}).get("Devices") or ():
                device_id = driver_names.device_id(device["DeviceName"], known)
                owners[device_id] = owners.get(device_id, frozenset()).union(claim["PodUIDs"] or ())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostError(f"{CLAIMS_CHECKPOINT} does not have the format of kubelet 1.34 or later: {error!r}") from error
    return owners


def _decoded(text: bytes | str) -> Any:
    import json  # noqa: PLC0415 - with the first leak scan, after the start

    return json.loads(text)
