"""The pods' events of type Warning, and which of them show that Kubernetes alone has held a pod back."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORBIDDEN: Final = re.compile(
    r"FailedPrepareDynamicResources: .*\bfetch ResourceClaim (\S+): .*\"\1\" is forbidden: .*"
    r"no relationship found between node"
)
_PRECISION: Final = 1.0
"""The times of events have no fractions of a second."""


class Warned(NamedTuple):
    """An event of type Warning of a pod."""

    pod: str
    text: str
    """Its reason and its message."""
    last: float
    """When it happened last, in seconds since the epoch, without a fraction."""


def parse(event: Mapping[str, Any]) -> Warned:
    """Return an event of the API server."""
    last = datetime.fromisoformat(event["lastTimestamp"]).timestamp()
    return Warned(event["involvedObject"]["name"], f"{event['reason']}: {event['message']}", last)


def is_of_kubernetes(event: Warned, called: Mapping[str, float]) -> bool:
    """Return whether the kubelet was not allowed to read the claim of a pod, and had not called the plugin for it.

    The API server's node authorizer learns from a watch which pod is bound to which node, and the kubelet from another
    (plugin/pkg/auth/authorizer/node/graph_populator.go). The kubelet gets all claims of a pod before it calls a driver
    (pkg/kubelet/cm/dra/manager.go, prepareResources), so that this message alone shows that it called none in this
    attempt. ``called`` is the time of the first request to the plugin for each claim, from the plugin's log: it shows
    that no earlier attempt did either, and that a later one has.
    """
    match = _FORBIDDEN.match(event.text)
    return match is not None and called.get(match[1], -math.inf) >= event.last + _PRECISION
