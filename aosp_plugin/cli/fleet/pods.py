"""The state of a pod, as the API server describes it. Everything here is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aosp_plugin.cli.fleet.report import PhoneState

if TYPE_CHECKING:
    from aosp_plugin.cli.fleet.cluster import Node, Pod

PATIENCE: Final = 300.0
"""Seconds after which it is a problem that a pod starts, ends, or is not ready."""

_USUAL: Final = frozenset({"ContainerCreating", "PodInitializing", ""})


class PodState(NamedTuple):
    """What a pod does."""

    state: PhoneState
    reason: str = ""
    since: float | None = None
    problem: bool = False


def pod_state(pod: Pod, node: Node | None, now: float) -> PodState:
    """Return the state of a pod; ``node`` is None if its node is unknown."""
    if pod.phase == "Failed":
        return PodState(PhoneState.FAILED, _joined(pod.reason, pod.message) or _waiting(pod), None, problem=True)
    if pod.deleted is not None:
        late = now - pod.deleted
        reason = f"should have ended {late:.0f} s ago" if late > PATIENCE else ""
        return PodState(PhoneState.TERMINATING, reason, pod.deleted, problem=bool(reason))
    if not pod.node:
        return _unscheduled(pod, now)
    if node is not None and node.ready.status != "True":
        reason = _joined("node not ready", node.ready.reason)
        return PodState(PhoneState.LOST, reason, node.ready.since, problem=True)
    if pod.ready:
        return PodState(PhoneState.RUNNING)
    return _not_ready(pod, now)


def _unscheduled(pod: Pod, now: float) -> PodState:
    scheduled = pod.conditions.get("PodScheduled")
    if scheduled is None or scheduled.status != "False":
        late = now - pod.created > PATIENCE
        return PodState(PhoneState.WAITING, "no scheduler has handled it" if late else "", pod.created, problem=late)
    gated = scheduled.reason == "SchedulingGated"
    return PodState(PhoneState.WAITING, scheduled.message or scheduled.reason, scheduled.since, problem=not gated)


def _not_ready(pod: Pod, now: float) -> PodState:
    ready = pod.conditions.get("Ready")
    since = ready.since if ready is not None and ready.since is not None else pod.created
    if any(reason not in _USUAL for reason, _ in pod.waiting):
        return PodState(PhoneState.FAILING, _waiting(pod), since, problem=True)
    late = now - since > PATIENCE
    if pod.phase == "Running":
        reason = ready.message or ready.reason if ready is not None else ""
        return PodState(PhoneState.NOT_READY, reason, since, problem=late)
    return PodState(PhoneState.STARTING, _waiting(pod), since, problem=late)


def _waiting(pod: Pod) -> str:
    """Return what the containers wait for, the unusual first."""
    texts = [_joined(*each) for each in sorted(pod.waiting, key=lambda each: each[0] in _USUAL)]
    return texts[0] if texts else ""


def _joined(*texts: str) -> str:
    return ": ".join(text for text in texts if text)
