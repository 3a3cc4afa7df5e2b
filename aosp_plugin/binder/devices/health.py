"""Why a device is unhealthy: the reasons and what each one means, and what is required of a healthy device.

``store.evaluate`` has the rules for a binder device, and ``backend.found_devices`` those for a whole device.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_MAX_NAMED = 4
"""Devices in the text of a problem; a host without loop devices lacks thousands."""


class Reason(enum.StrEnum):
    """Why a device is unhealthy, as in logs, metrics and errors. ``REASONS`` says what each reason means.

    Earlier reasons take precedence in a device set. They are in the order of ``Effect``, so the reason that wins also
    decides who may use the device. Of those with the same effect, ``deliberate`` ones come last: they hide no fault.
    """

    FOREIGN_MOUNT = "foreign-mount"
    """Another file system, or a file, is in place of the phone's binderfs."""
    NOT_PROVISIONED = "not-provisioned"
    """No binderfs is mounted for the phone, and the plugin is not to mount one: ``aosp-plugin provision`` does."""
    MISSING = "missing"
    """The file does not exist, or it is a dangling link."""
    INCOMPLETE = "incomplete"
    """A member of the device set is missing."""
    BINDERFS_UNAVAILABLE = "binderfs-unavailable"
    """No binderfs can be mounted for a claim: the kernel has none, or the plugin may not mount it."""
    NOT_A_DEVICE = "not-a-device"
    """The file is not a character device."""
    NOT_BINDER = "not-binder"
    """The device number belongs to another driver, for example KVM."""
    PROBE_FAILED = "probe-failed"
    """BINDER_VERSION failed, or returned another version than 8."""
    REQUIREMENT_MISSING = "requirement-missing"
    """Another device of the host that each container of the resource requires, or that this one has by its number, does
    not exist."""
    IN_USE_BY_OTHER_API = "in-use-by-other-api"
    """A pod still has the device through the device plugin API, and the resource is now served by DRA; or vice
    versa."""
    IN_USE_BY_OTHER_RESOURCE = "in-use-by-other-resource"
    """A pod has the device, or a file of it, under the name of another resource, or under another ID."""
    NOT_RECREATED = "not-recreated"
    """The binder device could not be recreated, and a former tenant may still have it open."""
    REPLACED = "replaced"
    """The file is on another file system than before: the binderfs was mounted again, and running containers may have
    devices of the old one."""
    NOT_IN_CDI_SPEC = "not-in-cdi-spec"
    """Containers get the device by the CDI spec only, and the spec that has it could not be written."""
    NOT_RECORDED = "not-recorded"
    """The record of the device could not be written, without which a later configuration would give it away again."""
    OFFERED_BY_OTHER_RESOURCE = "offered-by-other-resource"
    """The device is offered under the name of another resource on this host, which began earlier."""
    BEYOND_PER_DEVICE = "beyond-per-device"
    """As many devices as ``per_device`` allows have the same spread device, and this is a further one."""
    SURPLUS = "surplus"
    """The configured count of phones is lower than the number of this one: it is removed when its pod has ended."""


PRECEDENCE = {reason: position for position, reason in enumerate(Reason)}
"""The position of each reason in ``Reason``: of several reasons, the one with the lowest position wins."""


class Effect(enum.IntEnum):
    """Who may use a device that has a reason, the strictest effect first. Each reason closes the device to new pods."""

    CLOSED = enum.auto()
    """Nobody may, neither the pod that has the device nor a claim."""
    IN_USE = enum.auto()
    """A pod has the device by another name or API, and what it has must not change: nothing of this resource may have
    it. A claim of this resource that was prepared before keeps it."""
    REPAIRED_AT_START = enum.auto()
    """The pod that has the device may start its container again: PreStartContainer repairs the device, or fails. A
    claim may not have it, because nothing is called when its container starts."""
    OPEN_TO_OWNER = enum.auto()
    """Closed to new pods only. The pod that has the device may start its container again, and the claim that was
    allocated it may have it."""


class ReasonInfo(NamedTuple):
    """What a reason means for pods and for operators."""

    title: str
    """The rest of a sentence that begins with the number of devices."""
    action: str
    """What it means and what to do first."""
    effect: Effect = Effect.CLOSED
    expires: bool = False
    """Whether the device is accepted as it is, or dropped, after ``missing_device_ttl``."""
    deliberate: bool = False
    """Whether it is a notice that no alert counts, and no warning: it follows from what was configured, and nothing on
    the host is at fault."""


REASONS: Mapping[Reason, ReasonInfo] = {
    Reason.FOREIGN_MOUNT: ReasonInfo(
        "hidden by a foreign mount",
        "Unmount what is in place of the phone's binderfs.",
    ),
    Reason.NOT_PROVISIONED: ReasonInfo(
        "without a binderfs, and the plugin is not to mount one",
        "Restart the plugin's pod on this node: its init container mounts what is missing.",
    ),
    Reason.MISSING: ReasonInfo(
        "missing: the file does not exist",
        "Create it again, or its binderfs, or what its link leads to. After missing_device_ttl it is not listed.",
        expires=True,
    ),
    Reason.INCOMPLETE: ReasonInfo(
        "incomplete: a binder device of the set is missing",
        "Create it again. If it never existed, correct the configured sets.",
    ),
    Reason.BINDERFS_UNAVAILABLE: ReasonInfo(
        "not available: no binderfs can be mounted for a claim",
        "Load binder_linux on the node, and check that the plugin's pod is privileged.",
    ),
    Reason.NOT_A_DEVICE: ReasonInfo(
        "not a character device",
        "Remove the file or directory with that name, and create the device again.",
    ),
    Reason.NOT_BINDER: ReasonInfo(
        "not from the binder driver",
        "Remove the device, which belongs to another driver, and create it again.",
    ),
    Reason.PROBE_FAILED: ReasonInfo(
        "not answering the probe of the binder driver",
        "Check dmesg; if all devices fail at once, drain and reboot the node.",
    ),
    Reason.REQUIREMENT_MISSING: ReasonInfo(
        "lacking another device of the host",
        "Load the driver of the path that does not exist.",
    ),
    Reason.IN_USE_BY_OTHER_API: ReasonInfo(
        "in use through the other API",
        "The api of the resource was changed while a pod had the device. It is free when that pod ends.",
        Effect.IN_USE,
        deliberate=True,
    ),
    Reason.IN_USE_BY_OTHER_RESOURCE: ReasonInfo(
        "in use under the name of another resource",
        "The resource was renamed, or another plugin has the same devices. The detail names the pod: when it ends, the "
        "device is free.",
        Effect.IN_USE,
        deliberate=True,
    ),
    Reason.NOT_RECREATED: ReasonInfo(  # PreStartContainer recreates it, or fails with the cause
        "not recreated: it may carry the context of the tenant before",
        "The plugin retries after each scan. The detail has the cause.",
        Effect.REPAIRED_AT_START,
    ),
    Reason.REPLACED: ReasonInfo(
        "replaced: the binderfs was mounted again",
        "Restart the containers: they have devices of the old mount. The devices are healthy after missing_device_ttl.",
        Effect.OPEN_TO_OWNER,
        expires=True,
    ),
    Reason.NOT_IN_CDI_SPEC: ReasonInfo(  # PreStartContainer writes the spec, or fails itself
        "not in the CDI spec",
        "Check for a full or read-only file system: the spec could not be written.",
        Effect.OPEN_TO_OWNER,
    ),
    Reason.NOT_RECORDED: ReasonInfo(
        "not recorded: the record of the resource could not be written",
        "Check for a full or read-only file system with the kubelet's directory.",
        Effect.OPEN_TO_OWNER,
    ),
    Reason.OFFERED_BY_OTHER_RESOURCE: ReasonInfo(
        "offered under the name of another resource",
        "Two resources on the node have the same devices: remove one, or give each a directory or prefix of its own.",
        Effect.OPEN_TO_OWNER,
    ),
    Reason.BEYOND_PER_DEVICE: ReasonInfo(
        "beyond per_device: no room on the spread device",
        "Lower the count, or raise per_device. A pod that has the device keeps it.",
        Effect.OPEN_TO_OWNER,
        deliberate=True,
    ),
    Reason.SURPLUS: ReasonInfo(
        "surplus: beyond phones.count",
        "The count was lowered. The phone is removed when its pod has ended.",
        Effect.OPEN_TO_OWNER,
        deliberate=True,
    ),
}
"""The meaning of each reason, in the order of ``Reason``. The heading in docs/runbook.md is the reason."""


class Verify(enum.StrEnum):
    """Requirements for a healthy device. Each level includes those before it."""

    FILE = "file"
    """A file exists. For the demo, and for tests without root."""
    CHAR = "char"
    """The file is a character device."""
    BINDER = "binder"
    """The device number belongs to the binder driver."""
    PROBE = "probe"
    """The driver responds to BINDER_VERSION."""


class HealthProblem(NamedTuple):
    """Why a device set is unhealthy."""

    reason: Reason
    detail: str
    """The reason and, for a set of several binder devices, the names of the affected ones."""

    @property
    def closed(self) -> bool:
        """Whether nobody may use the device."""
        return self._effect is Effect.CLOSED

    @property
    def open_to_owner(self) -> bool:
        """Whether the pod that has the device may start its container again, through PreStartContainer."""
        return self._effect >= Effect.REPAIRED_AT_START

    @property
    def closed_to_claims(self) -> bool:
        """Whether a claim cannot have the device, even one that was prepared before."""
        return self._effect in {Effect.CLOSED, Effect.REPAIRED_AT_START}

    @property
    def in_use(self) -> bool:
        """Whether another pod has the device."""
        return self._effect is Effect.IN_USE

    @property
    def _effect(self) -> Effect:
        return REASONS[self.reason].effect


def requirement_missing(paths: Sequence[str]) -> HealthProblem | None:
    """Return REQUIREMENT_MISSING if these devices of the host are missing; None if there are none."""
    reason, more = Reason.REQUIREMENT_MISSING, len(paths) - _MAX_NAMED
    text = ", ".join(paths[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    return HealthProblem(reason, f"{reason}: {text}") if paths else None


def first(*problems: HealthProblem | None) -> HealthProblem | None:
    """Return the problem with the earliest reason in ``Reason``; None if there is no problem."""
    found = [problem for problem in problems if problem is not None]
    return min(found, key=lambda problem: PRECEDENCE[problem.reason]) if found else None


def aggregate(set_id: str, members: Sequence[tuple[str, Reason | None]]) -> HealthProblem | None:
    """Return why a device set is unhealthy, or None if all of its members are healthy.

    ``members`` are the names of its binder devices, each with its reason; MISSING also if no scan has found it. The
    earliest reason in ``Reason`` wins, because a check implies that those before it passed. If some members are
    missing, the set is incomplete; if all are, it is missing.
    """
    reasons = {reason for _, reason in members if reason is not None}
    if not reasons:
        return None
    reason = min(reasons, key=PRECEDENCE.__getitem__)
    if [name for name, _ in members] == [set_id]:
        return HealthProblem(reason, str(reason))
    names = [name for name, cause in members if cause is reason]
    if reason is Reason.MISSING and len(names) < len(members):
        return HealthProblem(Reason.INCOMPLETE, f"{Reason.INCOMPLETE}: missing {', '.join(names)}")
    return HealthProblem(reason, f"{reason}: {', '.join(names)}")
