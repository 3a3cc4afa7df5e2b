"""The kubelet's requests to the plugin, from the plugin's log in JSON at level debug."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STARTING: Final = ("GetPreferredAllocation", "Allocate", "PreStartContainer", "NodePrepareResources")
"""The requests that the start of a pod waits for."""
ENDING: Final = ("NodeUnprepareResources",)
"""The requests that the end of a pod waits for."""
_RECEIVED: Final = "request received"
_ANSWERED: Final = "request answered"
_PROBLEMS: Final = ("warning", "error", "critical")


class Request(NamedTuple):
    """A request that the plugin has answered without an error."""

    rpc: str
    end: float
    """Seconds since the epoch, with the log's precision of a millisecond."""
    seconds: float
    """From the plugin's reading of the request to its answer."""


def parse(log: str, since: float) -> list[Request]:
    """Return the requests that were answered without an error after a time, in seconds since the epoch."""
    return [
        Request(entry["rpc"], _time(entry), entry["duration_ms"] / 1000)
        for entry in _entries(log, since)
        if entry.get("message") == _ANSWERED and "duration_ms" in entry
    ]


def first_calls(log: str, since: float) -> dict[str, float]:
    """Return the time of the first NodePrepareResources of each claim after a time, by the claim's name."""
    first: dict[str, float] = {}
    for entry in _entries(log, since):
        if entry.get("message") == _RECEIVED and entry.get("rpc") == "NodePrepareResources":
            for claim in entry["claim"].split(","):
                first.setdefault(claim.rpartition("/")[2], _time(entry))
    return first


def problems(log: str, since: float) -> list[str]:
    """Return the log's lines of level warning or worse after a time."""
    return [json.dumps(entry) for entry in _entries(log, since) if entry.get("level") in _PROBLEMS]


def busy_seconds(requests: Iterable[Request]) -> float:
    """Return the seconds in which at least one of the requests was being answered."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((request.end - request.seconds, request.end) for request in requests):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _entries(log: str, since: float) -> Iterator[dict[str, Any]]:
    """Yield the entries after a time; a traceback of the interpreter is no entry."""
    for line in log.splitlines():
        if line.startswith("{") and _time(entry := json.loads(line)) >= since:
            yield entry


def _time(entry: dict[str, Any]) -> float:
    return datetime.fromisoformat(entry["time"]).timestamp()
