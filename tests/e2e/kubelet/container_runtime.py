"""What the items use of a container runtime: operations on containers without the kubelet's knowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tests.e2e.kubelet.processes import run

if TYPE_CHECKING:
    import signal
    from pathlib import Path

    from tests.e2e.kubelet.processes import Daemon


class ContainerRuntime(Protocol):
    """A container runtime with its own configuration, directories and socket."""

    socket: str
    daemon: Daemon

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the container runtime and of the OCI runtime by name."""

    def start(self) -> None:
        """Start the runtime, and wait until it serves the CRI."""

    def restart(self) -> None:
        """Restart the runtime; containers keep running."""

    def crash(self) -> None:
        """Remove all containers and restart the runtime, as after a loss of power."""

    def stop(self) -> None:
        """Stop all containers, and the runtime."""

    def load(self, archive: Path) -> None:
        """Import an image from an archive."""

    def execute(self, container_id: str, *words: str, detach: bool = False, user: str = "") -> str:
        """Run a program in a container, and return its output; "" with ``detach``. Default: the container's user."""

    def signal(self, container_id: str, number: signal.Signals) -> None:
        """Send a signal to a container's first process."""

    def kill(self, container_id: str) -> None:
        """Kill a container's first process."""

    def process_status(self, container_id: str) -> dict[str, str]:
        """Return /proc/PID/status of a container's first process."""

    def running(self) -> set[str]:
        """Return the IDs of the running containers."""

    def spec(self, container_id: str) -> dict[str, Any]:
        """Return a container's OCI runtime spec."""

    def oci_state(self, container_id: str) -> dict[str, Any]:
        """Return a container's state from the OCI runtime. Raises AssertionError if that has not started it."""


def without_scheme(container_id: str) -> str:
    """Return the runtime's ID of a container from that in a pod's status, such as ``containerd://ID``."""
    return container_id.rpartition("://")[2]


def process_status(pid: int | str) -> dict[str, str]:
    """Return /proc/PID/status by field."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def oci_version(program: str) -> dict[str, str]:
    """Return the version of an OCI runtime by its name, as it reports both."""
    words = run(program, "--version").split()
    assert words[1].lower().rstrip(":") == "version", f"{program} --version: {words}"
    return {words[0]: words[2]}
