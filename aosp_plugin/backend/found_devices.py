"""The devices of a resource as of one scan, and the health of each device.

The reasons of the binder devices come from ``binder.devices.store``. Other reasons come from recreation, the CDI spec,
phones, shared devices, and pods that have devices through another API.
"""

import math
import posixpath
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from aosp_plugin.backend.container_edits import AllocatedDevice
from aosp_plugin.backend.offers import DeviceFiles
from aosp_plugin.backend.shared_paths import SharedFiles
from aosp_plugin.binder.devices.health import PRECEDENCE, HealthProblem, Reason, aggregate, first, requirement_missing
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.devices.sets import DeviceSet, is_phone, last_number
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.framework.backend import Found

NOT_PROVISIONED: Final = (
    "no binderfs is mounted for it: restart the plugin's pod, or run aosp-plugin provision on the host"
)

NOT_ANSWERED: Final = "the kubelet has not answered yet which pods have it"

_SUSPECT = HealthProblem(Reason.IN_USE_BY_OTHER_API, f"{Reason.IN_USE_BY_OTHER_API}: {NOT_ANSWERED}")

_RECREATABLE = (Kind.BINDERFS, Kind.ABSENT)


class Allocated(NamedTuple):
    """The devices that pods have, according to the kubelet."""

    ids: frozenset[str]
    """As the plugin advertises them, so with the number of a replica if there are several; and those of all claims."""
    asked: float
    """When the question began: with the records of claims. In seconds of ``time.monotonic``."""


class ScanInput(NamedTuple):
    """The input of scans that the daemon passes to the backend of one resource."""

    held: Mapping[str, HealthProblem] = {}
    """Why devices are held, by ID: no further pod gets them until they are free."""
    held_since: Callable[["FoundDevices"], Mapping[str, HealthProblem]] = lambda _: {}
    """Returns the same for the devices of a scan whose files have appeared since. For any thread."""
    claimed: Mapping[str, HealthProblem] = {}
    """Why a DRA driver does not offer devices that claims of other drivers have, by ID. It reads their records itself
    before it prepares or releases a device."""
    unrecorded: Mapping[str, HealthProblem] = {}
    """Why no new pod gets a device whose record could not be written, by ID."""
    asked: float = -math.inf
    """When the last question to the kubelet began that it has answered, with the records of claims."""
    allocated: Allocated | None = None
    """The devices that pods have, for the removal of phones; None if they are unknown."""
    former: Container[str] = ()
    """The IDs, without replicas, of devices that pods may have, of this configuration or of an earlier one."""
    resets: int = 0
    """A scan after each increase forgets the history: it accepts the devices that it finds, and drops the others."""


class PhoneState(NamedTuple):
    """The phones of a resource at one moment."""

    configured: frozenset[str]
    """The phones that the configuration has; others are surplus."""
    foreign: Container[str] = ()
    """The phones with another file system, or a file, in their places."""
    mounted: Container[str] | None = None
    """The phones that ``aosp-plugin provision`` has mounted; None if the plugin mounts them."""
    prepared: Container[str] | None = None
    """The phones of prepared claims; None if phones exist without a claim. Those of others need not exist."""
    unclaimed: frozenset[str] = frozenset()
    """Those that have a binderfs although no prepared claim has them."""
    unavailable: str = ""
    """Why no binderfs can be mounted for a claim; empty if one can."""


class HostState(NamedTuple):
    """The state that decides on the health of devices, besides the files of the last scan, at one moment."""

    held: Mapping[str, HealthProblem] = {}
    """Why devices are held, see ``HeldDevices``, claimed, or not recorded, by ID."""
    lacking: frozenset[str] = frozenset()
    """Binder devices that are not in the CDI spec, where containers get devices by the spec alone."""
    not_recreated: Mapping[str, str] | None = None
    """Why binder devices could not be recreated, by name; None if the resource has no recreation."""
    phones: PhoneState | None = None
    """None if the resource has no phones."""


@dataclass(frozen=True)
class FoundDevices(Found):
    """The devices of a resource as of one scan. IDs are without replicas."""

    sets: Mapping[str, DeviceSet] = field(default_factory=dict)
    """The device sets by ID, in natural order."""
    binder_devices: Mapping[str, BinderDevice] = field(default_factory=dict)
    """The binder devices by name, missing ones included."""
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    """The reasons of the unhealthy binder devices, by name."""
    shared: SharedFiles = field(default_factory=SharedFiles)
    """What containers get besides binder devices."""
    state: HostState = field(default_factory=HostState)
    """The other state that decides on the health of the devices."""
    problems: Mapping[str, HealthProblem] = field(default_factory=dict)
    """Why the unhealthy devices are so, by ID."""
    numa_nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The NUMA nodes of devices that have any, by ID."""
    directory: str = ""
    """The device directory of the host without links."""
    files: Mapping[str, DeviceFiles] = field(default_factory=dict)
    """What identifies each device, by ID; empty if this process has no other resource."""
    elsewhere: Container[str] = ()
    """The devices that another resource of this process offers."""

    def existing(self, group: DeviceSet) -> list[BinderDevice]:
        """Return the existing binder devices of a device."""
        found = map(self.binder_devices.get, group.members)
        return [device for device in found if device is not None and device.identity is not None]

    @cached_property
    def paths(self) -> Mapping[str, list[str]]:
        """The sorted paths on the host, links resolved, that belong to one device alone, by ID.

        They are the paths of its binder devices, or of the phone even before it is mounted, and of its slices.
        """
        if self.state.phones is None:
            existing = ((name, each) for name, each in self.binder_devices.items() if each.identity is not None)
            real = {name: device.real_path for name, device in existing}
            paths = {each.id: [real[name] for name in each.members if name in real] for each in self.sets.values()}
        else:
            phones = {*self.sets, *self.state.phones.configured}
            paths = {phone: [posixpath.join(self.directory, phone)] for phone in phones}
        for device_id, own in paths.items():
            if self.shared.slices:
                own.extend(self.shared.sliced_of(self._number(device_id)))
            own.sort()
        return paths

    def _number(self, device_id: str) -> int:
        """Return the number that selects the slices of a device, which need not be listed."""
        group = self.sets.get(device_id)
        return (last_number(device_id) or 0) if group is None else group.number

    def identified(self) -> dict[str, DeviceFiles]:
        """Return what identifies each device on this host, by ID."""
        slices = {path: number for number, path in self.shared.sliced.items()}
        files = {}
        for device_id, paths in self.paths.items():
            places: list[Hashable] = [*paths]
            numbers: list[Hashable] = [slices[path] for path in paths if path in slices] if slices else []
            group = self.sets.get(device_id)
            for device in () if group is None else self.existing(group):
                if device.directory and device.identity is not None:
                    places.append((device.identity.file_system, device.real_path[len(device.directory) :]))
                else:
                    numbers.append(device.file)
            files[device_id] = DeviceFiles(places, numbers)
        return files

    @cached_property
    def _by_path(self) -> Mapping[str, str]:
        return {path: device_id for device_id, paths in self.paths.items() for path in paths}

    def device_at(self, path: str) -> str | None:
        """Return the ID of the device to which a path of the host belongs; None if there is none.

        A phone need not be listed.
        """
        directory, _, name = path.rpartition("/")
        if self.state.phones is not None and directory == self.directory:
            return name if is_phone(name) else None
        return self._by_path.get(path)

    def since(self, before: "FoundDevices") -> "FoundDevices":
        """Return the devices that have appeared since an earlier scan, and those with a binder device that has."""
        existing = {name: device for name, device in self.binder_devices.items() if device.identity is not None}
        new = {name for name, device in existing.items() if device is not before.binder_devices.get(name)}
        if not new and self.sets.keys() == before.sets.keys():
            return replace(self, sets={})
        known = before.sets
        groups = [each for each in self.sets.values() if each.id not in known or not new.isdisjoint(each.members)]
        return replace(self, sets={group.id: group for group in groups})

    @property
    def members(self) -> Mapping[str, Sequence[BinderDevice]]:
        """The existing binder devices of each device, by ID."""
        return {device_id: self.existing(group) for device_id, group in self.sets.items()}

    @cached_property
    def restricted(self) -> Mapping[str, Sequence[str]]:
        """The binder devices that not all users may open, of healthy devices with any, by ID."""
        names = {name for name, device in self.binder_devices.items() if device.restricted}
        groups = self.sets.values() if names else ()
        own = {group.id: [name for name in group.members if name in names] for group in groups}
        return {device_id: found for device_id, found in own.items() if found and device_id not in self.problems}

    @cached_property
    def crowded(self) -> Mapping[str, str]:
        """The devices beyond the ``per_device`` of a spread device, by ID, with the path of the spread device."""
        counts, full, spread = Counter[str](), dict[str, str](), self.shared.spread
        limited = any(item.device.per_device is not None for item in spread.items)
        for group in self.sets.values() if limited else ():
            limits = spread.limits(group.number)
            path = next((path for path, limit in limits.items() if counts[path] >= limit), "")
            if path:
                full[group.id] = path
            else:
                counts.update([*limits])
        return full

    @property
    def by_spread_device(self) -> dict[str, list[str]]:
        """The IDs of the devices of each spread device, by the path of the spread device."""
        ids: dict[str, list[str]] = {path: [] for path in self.shared.spread.paths}
        for group in self.sets.values() if ids else ():
            for selected in self.shared.spread.of(group.number):
                ids[selected.path].append(group.id)
        return ids

    @property
    def has_surplus(self) -> bool:
        """Whether phones are beyond the configured count or of no claim: the plugin removes those that are free."""
        phones = self.state.phones
        if phones is None or phones.mounted is not None:
            return False
        return bool(phones.unclaimed) if phones.prepared is not None else not phones.configured.issuperset(self.sets)

    @property
    def usable(self) -> list[AllocatedDevice]:
        """What containers get with each device that a new pod, or the pod that has it, may use."""
        problems = self.problems
        return [
            self.allocated(group)
            for group in self.sets.values()
            if group.id not in problems or not problems[group.id].closed
        ]

    def allocated(self, group: DeviceSet) -> AllocatedDevice:
        """Return what a container gets with a device."""
        return AllocatedDevice(group.id, self.existing(group), self.shared.of(group.number), group.number)


def device_problems(found: FoundDevices) -> dict[str, HealthProblem]:
    """Return why the unhealthy devices are so, by ID."""
    groups: Iterable[DeviceSet] = found.sets.values()
    shared, state = found.shared, found.state
    if not (shared.missing or shared.spread.lost or shared.slices or state.phones or state.not_recreated is not None):
        # Most devices are obviously healthy: 10,000 others take 20 ms.
        healthy = found.binder_devices.keys() - found.reasons.keys() - state.lacking
        others = {*state.held, *found.crowded}
        groups = [group for group in groups if group.id in others or not healthy.issuperset(group.members)]
    problems = ((group.id, problem(group, found, state)) for group in groups)
    return {device_id: cause for device_id, cause in problems if cause is not None}


def problem(group: DeviceSet, found: FoundDevices, state: HostState) -> HealthProblem | None:
    """Return why a device is unhealthy; None if it is healthy."""
    own = general_problem(group, found, state)
    if state.phones is not None and state.phones.prepared is not None and group.id not in state.phones.prepared:
        return own  # its binder devices are made when a claim is prepared
    reasons = [_reason(name, found, state) for name in group.members]
    if any(reasons):
        found_problem = aggregate(group.id, [*zip(group.members, reasons, strict=True)])
        return first(_with_causes(found_problem, group, state.not_recreated or {}), own)
    return own


def _with_causes(problem: HealthProblem | None, group: DeviceSet, causes: Mapping[str, str]) -> HealthProblem | None:
    """Add why binder devices of a device could not be recreated; ``causes`` are by name."""
    if problem is None or problem.reason is not Reason.NOT_RECREATED:
        return problem
    own = dict.fromkeys(causes[name] for name in group.members if causes.get(name))
    return problem._replace(detail=": ".join([problem.detail, *own]))


def general_problem(group: DeviceSet, found: FoundDevices, state: HostState) -> HealthProblem | None:
    """Return why a device is unhealthy apart from its binder devices; None if it is not."""
    shared, problems = found.shared, list[HealthProblem | None]()
    if group.id in state.held:
        problems.append(state.held[group.id])
    if shared.missing or shared.spread.lost or shared.slices:
        problems.append(requirement_missing([*shared.missing, *shared.missing_of(group.number)]))
    if group.id in found.crowded:
        reason, path = Reason.BEYOND_PER_DEVICE, found.crowded[group.id]
        problems.append(HealthProblem(reason, f"{reason}: no room on {path} (spread_devices, per_device)"))
    if state.phones is not None:
        problems.append(_phone_problem(group.id, state.phones))
    return first(*problems)


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


def _reason(name: str, found: FoundDevices, state: HostState) -> Reason | None:
    """Return why a binder device is unhealthy; None if it is healthy."""
    device = found.binder_devices.get(name)
    if device is None:
        return Reason.MISSING
    reasons = []
    if name in found.reasons:
        reasons.append(found.reasons[name])
    if state.not_recreated is not None and (name in state.not_recreated or device.kind not in _RECREATABLE):
        reasons.append(Reason.NOT_RECREATED)
    if name in state.lacking:
        reasons.append(Reason.NOT_IN_CDI_SPEC)
    return min(reasons, key=PRECEDENCE.__getitem__, default=None)


class HeldDevices:
    """The held devices of one resource: pods have them by another name or API, or another resource offers them.

    A pod that has a held device keeps it, under the name by which it got it. A phone that was mounted for the other API
    counts as held until the kubelet has answered a later question: another process may have mounted it for a pod just
    now. For the worker thread.
    """

    def __init__(self, told: Callable[[], ScanInput], provisioner: PhoneProvisioner | None) -> None:
        """``told`` returns the present input from the daemon. ``provisioner`` is that of the phones, if any."""
        self.told = told
        self._provisioner = provisioner
        self.appeared: Mapping[str, HealthProblem] = {}
        """Those whose files the daemon had not seen yet at the last scan, by ID."""
        self.elsewhere: Mapping[str, HealthProblem] = {}
        """Those that another resource of this process offered at the last scan, by ID."""

    @property
    def problems(self) -> Mapping[str, HealthProblem]:
        """Why devices are held, by ID."""
        told = self.told()
        others = {} if self._provisioner is None else self._provisioner.other_api
        suspects = [phone for phone, mount in others.items() if mount.since >= told.asked]
        return {**dict.fromkeys(suspects, _SUSPECT), **self.appeared, **told.held, **self.elsewhere}
