"""What both container runtimes have in common: the start, the end, and containers that are killed."""

import abc
import signal

from tests.e2e.common.processes import Daemon, run


class Restartable(abc.ABC):
    """A container runtime with its own configuration, directories and socket."""

    socket: str
    daemon: Daemon

    @abc.abstractmethod
    def start(self) -> None:
        """Start the runtime, and wait until it serves the CRI."""

    @abc.abstractmethod
    def signal(self, container_id: str, number: signal.Signals) -> None:
        """Send a signal to a container's first process."""

    @abc.abstractmethod
    def remove_containers(self) -> None:
        """Stop and remove all containers, sandboxes too."""

    def kill(self, container_id: str) -> None:
        """Kill a container's first process."""
        self.signal(container_id, signal.SIGKILL)

    def restart(self) -> None:
        """Restart the runtime; containers keep running."""
        self.daemon.end()
        self.start()

    def crash(self) -> None:
        """Remove all containers and restart the runtime, as after a loss of power.

        The CRI service has records of its own, and without a restart reports the containers as running for seconds.
        """
        self.remove_containers()
        self.daemon.end(signal.SIGKILL)
        self.start()

    def stop(self) -> None:
        """Stop all containers, and the runtime."""
        self.remove_containers()
        self.daemon.end()


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
