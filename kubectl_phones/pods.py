"""The state of a pod, as the API server describes it. Everything here is pure."""

from typing import Final, NamedTuple

from kubectl_phones.objects import Node, Pod, joined
from kubectl_phones.report import PhoneState

PATIENCE: Final = 300.0
"""Seconds for which a pod may start, end, or not be ready, before that is a problem."""

_USUAL: Final = frozenset({"ContainerCreating", "PodInitializing", ""})


class PodState(NamedTuple):
    """The state of a pod."""

    state: PhoneState
    reason: str = ""
    since: float | None = None
    problem: bool = False


def pod_state(pod: Pod, node: Node | None, now: float) -> PodState:
    """Return the state of a pod; ``node`` is None if its node is unknown."""
    if pod.phase == "Failed":
        return PodState(PhoneState.FAILED, pod.problem or _waiting(pod), None, problem=True)
    if pod.deleted is not None:
        late = now - pod.deleted
        reason = f"should have ended {late:.0f} s ago" if late > PATIENCE else ""
        return PodState(PhoneState.TERMINATING, reason, pod.deleted, problem=bool(reason))
    if not pod.node or pod.scheduled.status == "False":  # a pod of the plugin has a node before it is scheduled
        return _unscheduled(pod, now)
    if node is not None and node.ready.status != "True":
        reason = joined("node not ready", node.ready.reason)
        return PodState(PhoneState.LOST, reason, node.ready.since, problem=True)
    return _placed(pod, now)


def _placed(pod: Pod, now: float) -> PodState:
    """Return the state of a pod on a node that is ready."""
    if pod.ready.status == "True":
        return PodState(PhoneState.RUNNING)
    since = pod.created if pod.ready.since is None else pod.ready.since
    if any(reason not in _USUAL for reason, _ in pod.waiting):
        return PodState(PhoneState.FAILING, _waiting(pod), since, problem=True)
    late = now - since > PATIENCE
    if pod.phase == "Running":
        return PodState(PhoneState.NOT_READY, pod.ready.message or pod.ready.reason, since, problem=late)
    return PodState(PhoneState.STARTING, _waiting(pod), since, problem=late)


def _waiting(pod: Pod) -> str:
    """Return what the containers wait for, the unusual first."""
    texts = [joined(*each) for each in sorted(pod.waiting, key=lambda each: each[0] in _USUAL)]
    return texts[0] if texts else ""


def _unscheduled(pod: Pod, now: float) -> PodState:
    scheduled = pod.scheduled
    if scheduled.status != "False":
        late = now - pod.created > PATIENCE
        return PodState(PhoneState.WAITING, "no scheduler has handled it" if late else "", pod.created, problem=late)
    gated = scheduled.reason == "SchedulingGated"
    return PodState(PhoneState.WAITING, scheduled.message or scheduled.reason, scheduled.since, problem=not gated)
