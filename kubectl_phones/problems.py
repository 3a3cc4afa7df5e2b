"""The problems of nodes. Everything here is pure."""

import collections
import re
from collections.abc import Collection, Iterator

from kubectl_phones.devices import DOMAIN, Devices
from kubectl_phones.gather import Cluster
from kubectl_phones.objects import Object, joined, seconds
from kubectl_phones.report import Problem
from kubectl_phones.rows import NodeView, pod_state


def problems(cluster: Cluster, views: Collection[NodeView], devices: Devices) -> Iterator[Problem]:
    """Yield the problems of nodes."""
    events = collections.defaultdict(list)
    for event in cluster.events or ():
        events[event["involvedObject"]["name"]].append(event)
    for view in views:
        yield from _node_problems(view)
        yield from _plugin_problems(view, cluster.time)
        yield from _resource_problems(view, devices)
        yield from _event_problems(view, events[view.node.name])


def _node_problems(view: NodeView) -> Iterator[Problem]:
    node = view.node
    if node.ready.status != "True":
        detail = joined(node.ready.reason, node.ready.message)
        yield Problem("node-not-ready", node.name, "", detail, node.ready.since)
    for taint in node.taints:
        if taint.partition("/")[0] == DOMAIN:
            yield Problem("startup-taint", node.name, "", f"the taint {taint} keeps pods away", None)


def _plugin_problems(view: NodeView, now: float) -> Iterator[Problem]:
    name, pod = view.node.name, view.pod
    if view.plugin == "absent":
        used = sum(row.used or 0 for row in view.rows)
        detail = f"the node has no pod of the plugin{f'; {_phones(used)} in use' if used else ''}"
        yield Problem("plugin-absent", name, "", detail, None)
    elif view.plugin == "not-ready" and pod is not None:
        state = pod_state(pod, view.node, now)
        detail = state.reason or f"its pod is {state.state}"
        yield Problem("plugin-not-ready", name, "", detail, pod.ready.since or pod.created)


def _resource_problems(view: NodeView, devices: Devices) -> Iterator[Problem]:
    for row in view.rows:
        if row.phones == 0 and row.plugin == "ready":
            detail = f"the plugin is ready, and the node has no {row.resource or 'phones'}"
            yield Problem("no-phones", row.node, row.resource, detail, row.since)
        if row.unhealthy:
            found = devices.by_place.get((row.node, row.resource), {})
            bad = [device for device in found.values() if device.reason]
            counts = collections.Counter(device.reason for device in bad)
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()))
            since = min((device.since for device in bad if device.since is not None), default=None)
            detail = joined(f"{row.unhealthy:,} of {_phones(row.phones)}", reasons)
            yield Problem("unhealthy", row.node, row.resource, detail, since)


def _event_problems(view: NodeView, events: Collection[Object]) -> Iterator[Problem]:
    """Yield the problems that the present plugin has reported, and has not reported as ended."""
    started = view.pod.started if view.pod else 0.0
    for row in view.rows:
        latest: dict[str, Object] = {}
        for event in sorted(events, key=_last):
            if event["message"].startswith(f"{row.resource}: ") and _last(event) >= started:
                latest[event["reason"].removesuffix("Ended")] = event
        for reason, event in latest.items():
            if event["reason"] == reason:
                kind = re.sub("(?<=[a-z])(?=[A-Z])", "-", reason).lower()
                detail = event["message"].removeprefix(f"{row.resource}: ")
                yield Problem(kind, row.node, row.resource, detail, seconds(event.get("firstTimestamp")))


def _last(event: Object) -> float:
    return seconds(event.get("lastTimestamp")) or 0.0


def _phones(count: int) -> str:
    return f"{count:,} phone{'s' * (count != 1)}"
