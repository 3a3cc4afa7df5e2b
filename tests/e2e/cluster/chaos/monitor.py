"""Watches throughout a run, also in the middle of faults, that no two containers of a machine share a device."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster.outside import containers

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

_INTERVAL: Final = 0.5


class Monitor:
    """A thread that reads the containers' mounts; a context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rounds = 0
        """How often all machines were read."""

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()

    def take(self) -> list[str]:
        """Return what was found since the last call, or that nothing is compared any more."""
        found, self._found = self._found, set()
        return sorted(found) + ([] if self._thread.is_alive() else ["the comparison of devices has failed"])

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL):
            for machine in self._cluster.machines:
                if machine.running:
                    with contextlib.suppress(OSError):  # a container or the machine ends at this moment
                        self._found |= shared(machine)
            self.rounds += 1


def shared(machine: Machine) -> set[str]:
    """Return which devices of a machine two containers have at this moment. Raises OSError."""
    owners: dict[str, str] = {}
    found = set()
    for container in containers(machine):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for device in set(container.bound.values()):
                pod = f"{container.namespace}/{container.pod}"
                if owners.setdefault(device, pod) != pod:
                    found.add(f"{device} of {machine.name} was in {owners[device]} and in {pod} at the same time")
    return found
