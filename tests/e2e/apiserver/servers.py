"""What the tests get: the programs of control planes, and the one that runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster.control_plane import ControlPlane


@dataclass
class Servers:
    """The programs by version, and a directory for files."""

    work: Path
    programs: Mapping[str, Path]
    plane: ControlPlane | None = None
    """The control plane that was started last."""

    def tails(self) -> Iterable[tuple[str, str]]:
        """Return name and end of the log of each process."""
        return self.plane.tails() if self.plane else ()
