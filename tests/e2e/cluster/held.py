"""The binder devices of running containers, as the kernel shows them: without the daemons that tests kill."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.e2e.cluster import outside

if TYPE_CHECKING:
    from tests.e2e.cluster.machine import Machine


class Holder(NamedTuple):
    """A running container that has binder devices."""

    pod: str
    devices: frozenset[str]


def holders(machine: Machine) -> list[Holder]:
    """Return the containers of a machine that have binder devices."""
    found = []
    for container in outside.containers(machine):
        try:
            devices = frozenset(container.bound.values()) if container.kind == "container" else frozenset()
        except OSError:  # it has ended meanwhile
            continue
        if devices:
            found.append(Holder(container.pod, devices))
    return found


def devices_by_pod(machine: Machine) -> dict[str, frozenset[str]]:
    """Return the devices of each pod that has any."""
    return dict(holders(machine))


def conflicts(machine: Machine) -> list[tuple[str, str, str]]:
    """Return each device that two running containers have, with the names of both pods."""
    owners: dict[str, str] = {}
    found = []
    for pod, devices in holders(machine):
        for device in sorted(devices):
            if device in owners:
                found.append((device, owners[device], pod))
            owners[device] = pod
    return found
