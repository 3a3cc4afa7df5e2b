"""The binder devices of running containers, as the kernel shows them: without the daemons that tests kill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.cluster import outside

if TYPE_CHECKING:
    from tests.e2e.cluster.machine import Machine


def holders(machine: Machine) -> list[tuple[str, frozenset[str]]]:
    """Return pod and devices of each container of a machine that has binder devices."""
    found = []
    for container in outside.containers(machine):
        try:
            devices = frozenset(container.bound.values()) if container.kind == "container" else frozenset()
        except OSError:  # it has ended meanwhile
            continue
        if devices:
            found.append((container.pod, devices))
    return found


def devices_by_pod(machine: Machine) -> dict[str, frozenset[str]]:
    """Return the devices of each pod that has any."""
    return dict(holders(machine))


def conflicts(machine: Machine) -> list[tuple[str, str, str]]:
    """Return each device that the running containers of two pods have, with the names of both."""
    owners: dict[str, str] = {}
    found = []
    for pod, devices in holders(machine):
        taken = {device: owners.setdefault(device, pod) for device in sorted(devices)}
        found += [(device, owner, pod) for device, owner in taken.items() if owner != pod]
    return found
