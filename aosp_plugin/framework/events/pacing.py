"""When changed files are scanned: soon, but a file that keeps changing at growing intervals. Pure; without a lock.

The kubelet writes and syncs its checkpoint at every message, so a burst of changes must lead to few scans, and a device
that flaps must not lead to one for each flap. Other devices must not wait for it. Each file therefore has a level: 0 if
it has not changed for a while, and one more each time that it changes soon after a scan. The files of a level are
scanned together, when the level has been quiet, or after its cap if it never is. Both double from level to level.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

QUIET, CAP = 0.01, 0.25
"""Seconds without a change that end a burst, and seconds after which a scan starts although the burst goes on."""

LEVELS = 4
"""Both double three times at most: to 0.08 s and 2 s. No change waits longer for its scan."""

CALM = 0.1
"""Seconds after the scan of a file after which its next change does not raise its level. More than the longest quiet: a
file that changes more seldom is scanned after each change, and a higher level would only delay that."""

FEW, BURST_CALM = 10, 0.25
"""A scan of more files belongs to a burst, which is over after so many seconds without a scan of calm files."""

FREE_SCANS, PERIOD = 8, 1.0
"""Scans of calm files in so many seconds that are no burst either: devices that appear one after another."""

MAX_CHANGED_PATHS = 4096
"""Changed files that are remembered. More count as any file, so that a scan that hangs costs no memory."""

ANY: Final = ""
"""Stands for the path of any file: events were lost, or too many files have changed."""

MOUNTS: Final = "mounts"
"""Stands for the mount points: which of them changed, only the scan finds out."""


class Taken(NamedTuple):
    """Changes to scan now."""

    paths: Collection[str]
    first: float | None
    """The time of the first change; None if there is none."""


class _Level:
    """Changed files of one level that wait for a scan."""

    __slots__ = ("first", "last", "paths")

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.first = self.last = 0.0

    def add(self, path: str, now: float) -> bool:
        """Add a path; return whether it is the first one."""
        first = not self.paths
        if first:
            self.first = now
        self.last = now
        self.paths.add(path)
        return first


class Pacing:
    """Changed files that wait for a scan, and those that were scanned recently. All times are of one clock."""

    def __init__(self, quiet: float = QUIET) -> None:
        """``quiet``: seconds without a change that end a burst, at least."""
        self._quiet = quiet
        self._levels = [_Level() for _ in range(LEVELS)]
        self._waiting: dict[str, int] = {}
        """The level of each path that waits."""
        self._scanned: dict[str, tuple[int, float]] = {}
        """The level and the time of the scan of each path that was scanned recently. Scans share their tuples."""
        self._scans: deque[float] = deque()
        """The times of the scans of level 0 within ``PERIOD``."""
        self._bursts = 0
        """How many of the last ones belonged to a burst, less the others."""
        self._busy = 0
        """How often quiet and cap of level 0 are doubled, because calm files change one after another."""

    def note(self, path: str, now: float) -> bool:
        """Note a change of a file, of any (``ANY``) or of the mounts; return whether ``due`` may be earlier now."""
        level = self._waiting.get(path)
        if level is None and len(self._waiting) >= MAX_CHANGED_PATHS:
            path = ANY
            level = self._waiting.get(path)
            if level == 0:  # they are a burst
                self._levels[0].last = now
        if level is None:
            return self._add(path, self._next_level(path, now), now)
        if level:  # a file that changes twice within a moment does not delay the calm ones
            self._levels[level].last = now
        return False

    def admit(self, path: str, now: float, *, again: bool = False) -> bool:
        """Return whether a changed file that a scan has found is to be scanned at once; otherwise, note the change.

        ``again``: the file itself may not have changed, but has to be scanned again.
        """
        level = self._waiting.get(path)
        if level is None:
            level = self._recent_level(path, now) if again else self._next_level(path, now)
            if level:
                self._add(path, level, now)
        if level:
            return False
        self._waiting.pop(path, None)
        self._levels[0].paths.discard(path)
        self._scanned[path] = 0, now
        return True

    def due(self) -> float | None:
        """Return when the next scan is due; None if no file waits."""
        return min((self._due(number) for number, level in enumerate(self._levels) if level.paths), default=None)

    def take(self, now: float, *, everything: bool = False) -> Taken:
        """Return the changes that are due, as scanned now; with ``everything``, all of them."""
        due = [number for number, level in enumerate(self._levels) if level.paths and self._due(number) <= now]
        if everything or any(ANY in self._levels[number].paths for number in due):
            due = [number for number, level in enumerate(self._levels) if level.paths]
        taken: set[str] = set()
        first: list[float] = []
        for number in due:
            level = self._levels[number]
            if number == 0:
                is_burst = len(level.paths) > FEW or now < level.last + self._pace(0)[0]
                self._bursts = min(self._bursts + 1, LEVELS) if is_burst else max(self._bursts - 1, 0)
                self._scans.append(now)
            taken |= level.paths
            first.append(level.first)
            self._scanned.update(dict.fromkeys(level.paths, (number, now)))
            self._levels[number] = _Level()
        for path in taken:
            del self._waiting[path]
        return Taken(taken, min(first, default=None))

    def forget(self, now: float) -> bool:
        """Forget the files that have become calm; return whether there are others."""
        self._scanned = {path: (level, at) for path, (level, at) in self._scanned.items() if now - at < CALM}
        return bool(self._scanned)

    def _add(self, path: str, level: int, now: float) -> bool:
        if level == 0 and not self._levels[0].paths:
            self._busy = self._count_busy(now)
        self._waiting[path] = level
        return self._levels[level].add(path, now)

    def _recent_level(self, path: str, now: float) -> int:
        level, at = self._scanned.get(path, (0, -CALM))
        return level if now - at < CALM else 0

    def _next_level(self, path: str, now: float) -> int:
        level, at = self._scanned.get(path, (0, -CALM))
        return min(level + 1, LEVELS - 1) if now - at < CALM else 0

    def _count_busy(self, now: float) -> int:
        if self._scans and now - self._scans[-1] >= BURST_CALM:
            self._bursts = 0
        while self._scans and now - self._scans[0] >= PERIOD:
            self._scans.popleft()
        return self._bursts + max(0, len(self._scans) - FREE_SCANS)

    def _due(self, number: int) -> float:
        quiet, cap = self._pace(number)
        level = self._levels[number]
        return min(level.last + quiet, level.first + cap)

    def _pace(self, number: int) -> tuple[float, float]:
        """Return how long a level must be quiet before its scan, and the longest wait for that, in seconds."""
        growth = 2 ** min(number or self._busy, LEVELS - 1)
        return max(QUIET * growth, self._quiet), CAP * growth
