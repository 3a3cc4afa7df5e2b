"""The times for which a kubelet had no devices of a resource, according to its log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_EVENT: Final = re.compile(
    r'^I\d+ (\d+):(\d+):(\S+) .*\] "(Mark all resources Unhealthy|Processed device updates) for resource" '
    r'resourceName="([^"]+)"(?: totalCount=\d+ healthyCount=(\d+))?',
    re.MULTILINE,
)
"""Hours, minutes, seconds, event, resource, healthy devices. The kubelet marks all devices unhealthy when it has lost
the plugin, and processes the list of the next one (pkg/kubelet/cm/devicemanager/manager.go)."""
_DAY: Final = 86400.0


class GapWatch:
    """Reads the kubelet's log from now on."""

    def __init__(self, log: Path, resource: str) -> None:
        """``log`` is a log with klog's lines in verbosity 2."""
        self._log = log
        self._resource = resource
        self._start = log.stat().st_size

    def gaps(self) -> list[float]:
        """Return the length of each time without devices, in seconds; the last one is infinite if it has not ended."""
        with self._log.open("rb") as file:
            file.seek(self._start)
            text = file.read().decode(errors="replace")
        lost: float | None = None
        gaps = []
        for hours, minutes, seconds, event, resource, healthy in _EVENT.findall(text):
            if resource != self._resource:
                continue
            time = (int(hours) * 60 + int(minutes)) * 60 + float(seconds)
            if event.startswith("Mark"):
                lost = time if lost is None else lost
            elif lost is not None and healthy != "0":
                gaps.append((time - lost) % _DAY)
                lost = None
        return gaps if lost is None else [*gaps, float("inf")]
