"""Commands, and daemons with a log file."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

TAIL = 30
"""Lines of a log that are printed after a failure."""


def run(*command: str, seconds: float = 60, text: str | None = None, cwd: Path | None = None) -> str:
    """Run a command and return its output. Raises AssertionError with the output if it fails."""
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        input=text,
        timeout=seconds,
        check=False,
        cwd=cwd,
    )
    assert result.returncode == 0, (
        f"{' '.join(command)}: exit code {result.returncode}: {result.stdout.strip()[-2000:]}"
    )
    return result.stdout


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, and that have not been reaped."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Daemon:
    """A process that can be stopped and started again; all runs append to one log file."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
        """Prepare the command; :meth:`start` runs it."""
        self.name = name
        self.log = log
        self._command = command
        self._environment = os.environ | (environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process ID."""
        assert self._process is not None, f"{self.name} has not been started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process."""
        assert not self.running, f"{self.name} is already running"
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=self._environment
            )

    def end(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = 20) -> int:
        """Send a signal, wait for the end of the process, and return the exit code."""
        if self.running:
            os.kill(self.pid, number)
        return self.wait(seconds)

    def wait(self, seconds: float) -> int:
        """Wait for the end of the process, and return the exit code."""
        assert self._process is not None, f"{self.name} has not been started"
        return self._process.wait(seconds)

    def tail(self) -> str:
        """Return the end of the log, without the kubelet's lines about requests for its metrics."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        lines = [line for line in lines if "log_metrics.go" not in line]
        return "\n".join(f"  {line[:400]}" for line in lines[-TAIL:])


class EnteredDaemon(Daemon):
    """A daemon that nsenter starts in other namespaces; signals go to the program, for whose end nsenter waits."""

    @property
    def pid(self) -> int:
        """The process ID of the program, in this PID namespace."""
        nsenter = super().pid
        return next(iter(children(nsenter)), nsenter)
