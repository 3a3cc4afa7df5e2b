"""The devices of a resource as of one scan, and why they are unhealthy, from all that has a say in it.

The reasons of the binder devices come from ``binder.devices.store``. Others come from recreation, the CDI spec, phones,
shared devices, and pods that have devices through another API.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aosp_plugin.backend.container_edits import AllocatedDevice
from aosp_plugin.backend.shared_paths import SharedFiles, Spread
from aosp_plugin.binder.devices.health import HealthProblem, Reason, requirement_missing
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.devices.sets import DeviceSet
from aosp_plugin.framework.devices import Device

NOT_PROVISIONED: Final = (
    "no binderfs is mounted for it: restart the plugin's pod, or run aosp-plugin provision on the host"
)

_RECREATABLE = (Kind.BINDERFS, Kind.ABSENT)

_REPLICA = re.compile(r"::\d+$")


class PhoneState(NamedTuple):
    """The phones of a resource at one moment."""

    configured: Container[str]
    """The phones that the configuration orders; others are surplus."""
    foreign: Container[str] = ()
    """Phones in whose place another file system, or a file, is."""
    mounted: Container[str] | None = None
    """The phones that ``aosp-plugin provision`` has mounted; None if the plugin mounts them."""
    prepared: Container[str] | None = None
    """The phones of prepared claims; None if phones exist without a claim. Those of others need not exist."""
    unavailable: str = ""
    """Why no binderfs can be mounted for a claim; empty if one can."""


class HostState(NamedTuple):
    """What has a say in the health of devices besides the files of the last scan, at one moment."""

    held: Collection[str] = ()
    """The IDs of the devices that pods have through the other API."""
    holds_known: bool = True
    """Whether that is what the kubelet has reported, and not what the mounts suggest."""
    lacking: frozenset[str] = frozenset()
    """Binder devices that are not in the CDI spec, by which alone containers get them."""
    not_recreated: Container[str] | None = None
    """Binder devices that could not be recreated; None if the resource has no recreation."""
    phones: PhoneState | None = None
    """None if the resource has no phones."""


class Scanned(NamedTuple):
    """The result of a scan. Immutable: shared by all threads."""

    sets: Mapping[str, DeviceSet] = {}
    """The device sets by ID, without replicas, in natural order."""
    binder_devices: Mapping[str, BinderDevice] = {}
    """The binder devices by name, missing ones included."""
    reasons: Mapping[str, Reason] = {}
    """Why binder devices are unhealthy, of those that are, by name."""
    shared: SharedFiles = SharedFiles()
    """What containers get besides binder devices."""
    crowded: frozenset[str] = frozenset()
    """The IDs of the devices for which their spread device has no room."""
    state: HostState = HostState()
    """What has a say in the health of the devices besides the above."""
    problems: Mapping[str, HealthProblem] = {}
    """Why devices are unhealthy, of those that are, by ID."""
    numa_nodes: Mapping[str, tuple[int, ...]] = {}
    """NUMA nodes by ID, of the devices that are on any."""
    devices: Sequence[Device] = ()
    """The advertised devices in the order of the sets, one for each replica."""

    def existing(self, group: DeviceSet) -> list[BinderDevice]:
        """Return the binder devices of a device that exist."""
        found = map(self.binder_devices.get, group.members)
        return [device for device in found if device is not None and device.identity is not None]

    def allocated(self, group: DeviceSet) -> AllocatedDevice:
        """Return what a container gets with a device: its existing binder devices, and what it has by its number."""
        return AllocatedDevice(group.id, self.existing(group), self.shared.of(group.number))


def crowded(groups: Iterable[DeviceSet], spread: Spread) -> frozenset[str]:
    """Return the IDs of the devices beyond the first ones of their spread device, as many as its limit."""
    counts, ids = Counter[str](), set[str]()
    for group in groups if spread.limits else ():
        path = spread.device(group.number)
        counts[path] += 1
        if counts[path] > spread.limits.get(path, counts[path]):
            ids.add(group.id)
    return frozenset(ids)


def device_problems(groups: Collection[DeviceSet], scanned: Scanned, state: HostState) -> dict[str, HealthProblem]:
    """Return why devices are unhealthy, of those that are, by ID."""
    shared = scanned.shared
    general = shared.missing or shared.spread.lost or scanned.crowded
    if not (state.phones or state.not_recreated is not None or general):
        healthy = scanned.binder_devices.keys() - scanned.reasons.keys() - state.lacking
        others = {*state.held, *(group.id for group in groups if shared.slices and shared.missing_of(group.number))}
        groups = [group for group in groups if group.id in others or not healthy.issuperset(group.members)]
    found = {group.id: problem(group, scanned, state) for group in groups}
    return {device_id: cause for device_id, cause in found.items() if cause is not None}


def problem(group: DeviceSet, scanned: Scanned, state: HostState) -> HealthProblem | None:
    """Return why a device is unhealthy; None if it is healthy."""
    own = general_problem(group, scanned, state)
    if state.phones is not None and state.phones.prepared is not None and group.id not in state.phones.prepared:
        return own  # its binder devices are made when a claim is prepared
    members = [(name, _reason(name, scanned, state)) for name in group.members]
    return first(aggregate(group.id, members), own)


def general_problem(group: DeviceSet, scanned: Scanned, state: HostState) -> HealthProblem | None:
    """Return why a device as a whole is unhealthy, whatever its binder devices are; None if it is not."""
    held = None
    if group.id in state.held:
        unknown = "" if state.holds_known else ": the kubelet has not answered yet which pods have it"
        held = HealthProblem(Reason.IN_USE_BY_OTHER_API, f"{Reason.IN_USE_BY_OTHER_API}{unknown}")
    phones = None if state.phones is None else _phone_problem(group.id, state.phones)
    missing = [*scanned.shared.missing, *scanned.shared.missing_of(group.number)]
    if group.id in scanned.crowded:
        missing.append(f"room for it on {scanned.shared.spread.device(group.number)} (spread_devices, per_device)")
    return first(requirement_missing(missing), held, phones)


def _phone_problem(phone: str, phones: PhoneState) -> HealthProblem | None:
    reason, cause = None, ""
    if phone in phones.foreign:
        reason = Reason.FOREIGN_MOUNT
    elif phone not in phones.configured:
        reason = Reason.SURPLUS
    elif phones.mounted is not None and phone not in phones.mounted:
        reason, cause = Reason.NOT_PROVISIONED, f": {NOT_PROVISIONED}"
    elif phones.unavailable and (phones.prepared is None or phone not in phones.prepared):
        reason, cause = Reason.BINDERFS_UNAVAILABLE, f": {phones.unavailable}"
    return None if reason is None else HealthProblem(reason, f"{reason}{cause}")


def _reason(name: str, scanned: Scanned, state: HostState) -> Reason | None:
    """Return why a binder device is unhealthy; None if it is healthy."""
    device = scanned.binder_devices.get(name)
    if device is None:
        return Reason.MISSING
    reason = scanned.reasons.get(name)
    if reason is None and state.not_recreated is not None:
        failed = name in state.not_recreated or device.kind not in _RECREATABLE
        reason = Reason.NOT_RECREATED if failed else None
    if reason is None and name in state.lacking:
        reason = Reason.NOT_IN_CDI_SPEC
    return reason


def first(*problems: HealthProblem | None) -> HealthProblem | None:
    """Return the problem with the earliest reason in ``Reason``; None if there is no problem."""
    found = [problem for problem in problems if problem is not None]
    return min(found, key=lambda problem: list(Reason).index(problem.reason)) if found else None


def aggregate(set_id: str, members: Sequence[tuple[str, Reason | None]]) -> HealthProblem | None:
    """Return why a device set is unhealthy, or None if all of its members are healthy.

    ``members`` are the names of its binder devices, each with its reason; MISSING also if no scan has found it. The
    earliest reason in ``Reason`` wins, because a check implies that those before it passed. If some members are
    missing, the set is incomplete; if all are, it is missing.
    """
    reasons = {reason for _, reason in members if reason is not None}
    if not reasons:
        return None
    reason = min(reasons, key=list(Reason).index)
    if [name for name, _ in members] == [set_id]:
        return HealthProblem(reason, str(reason))
    names = [name for name, cause in members if cause is reason]
    if reason is Reason.MISSING and len(names) < len(members):
        return HealthProblem(Reason.INCOMPLETE, f"{Reason.INCOMPLETE}: missing {', '.join(names)}")
    return HealthProblem(reason, f"{reason}: {', '.join(names)}")


class Holds:
    """Which devices of one resource pods have through the other API: the node was moved between the two APIs.

    Pods that were started before keep their devices, and their containers may be restarted. The kubelet reports which
    devices they have. Until it has done so, those phones count as held whose mount was made for the other API. For any
    thread.
    """

    def __init__(self, suspects: Callable[[], Collection[str]]) -> None:
        """``suspects`` returns the phones that were mounted for the other API."""
        self._suspects = suspects
        self.reported: frozenset[str] | None = None
        """The devices that pods have through the other API; None while unknown. Set by a single assignment."""

    def report(self, ids: Collection[str]) -> None:
        """Set the devices that pods have through the other API, as IDs of that API, which may be those of replicas."""
        self.reported = frozenset(_REPLICA.sub("", device_id) for device_id in ids)

    @property
    def ids(self) -> frozenset[str]:
        """The IDs of the devices that are held."""
        reported = self.reported
        return frozenset(self._suspects()) if reported is None else reported
