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

    Earlier reasons take precedence in a device set. Those that close a device to all pods come before the others, so
    the reason that wins also decides who may use the device.
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
    NOT_RECREATED = "not-recreated"
    """The binder device could not be recreated, and a former tenant may still have it open."""
    REPLACED = "replaced"
    """The file is on another file system than before: the binderfs was mounted again, and running containers may have
    devices of the old one."""
    NOT_IN_CDI_SPEC = "not-in-cdi-spec"
    """Containers get the device by the CDI spec only, and the spec that has it could not be written."""
    IN_USE_BY_OTHER_API = "in-use-by-other-api"
    """A pod still has the device through the device plugin API, and the resource is now served by DRA; or vice
    versa."""
    IN_USE_BY_OTHER_RESOURCE = "in-use-by-other-resource"
    """A pod has the device, or a file of it, under the name of another resource, or under another ID."""
    OFFERED_BY_OTHER_RESOURCE = "offered-by-other-resource"
    """Another process on this host offers the device under the name of another resource, and began earlier."""
    BEYOND_PER_DEVICE = "beyond-per-device"
    """As many devices as ``per_device`` allows have the same spread device, and this is a further one."""
    SURPLUS = "surplus"
    """The configured count of phones is lower than the number of this one: it is removed when its pod has ended."""


class ReasonInfo(NamedTuple):
    """What a reason means for pods and for operators."""

    title: str
    """The rest of a sentence that begins with the number of devices."""
    action: str
    """What it means and what to do first."""
    open_to_owner: bool = False
    """Whether the pod that has the device may start its container again. Each reason closes the device to new pods."""
    expires: bool = False
    """Whether the device is accepted as it is, or dropped, after ``missing_device_ttl``."""
    in_use: bool = False
    """Whether another pod has the device: what it has must not change, so nothing of this resource may have it."""
    closed_to_claims: bool = False
    """Whether it also closes the device to the claim that was allocated it: no PreStartContainer makes it usable."""
    deliberate: bool = False
    """Whether the reason follows from a change of the configuration and ends by itself: a notice, and no alert."""


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
    Reason.NOT_RECREATED: ReasonInfo(  # PreStartContainer recreates it, or fails with the cause
        "not recreated: it may carry the context of the tenant before",
        "The plugin retries after each scan; its log has the cause.",
        open_to_owner=True,
        closed_to_claims=True,
    ),
    Reason.REPLACED: ReasonInfo(
        "replaced: the binderfs was mounted again",
        "Restart the containers: they have devices of the old mount. The devices are healthy after missing_device_ttl.",
        open_to_owner=True,
        expires=True,
    ),
    Reason.NOT_IN_CDI_SPEC: ReasonInfo(  # PreStartContainer writes the spec, or fails itself
        "not in the CDI spec",
        "Check for a full or read-only file system: the spec could not be written.",
        open_to_owner=True,
    ),
    Reason.IN_USE_BY_OTHER_API: ReasonInfo(
        "in use through the other API",
        "The api of the resource was changed while a pod had the device. It is free when that pod ends.",
        open_to_owner=True,
        in_use=True,
        deliberate=True,
    ),
    Reason.IN_USE_BY_OTHER_RESOURCE: ReasonInfo(
        "in use under the name of another resource",
        "The resource was renamed, or another plugin has the same devices. The detail names the pod: when it ends, the "
        "device is free.",
        open_to_owner=True,
        in_use=True,
        deliberate=True,
    ),
    Reason.OFFERED_BY_OTHER_RESOURCE: ReasonInfo(
        "offered under the name of another resource",
        "Two plugins on the node have the same devices: remove one, or give each a directory or prefix of its own.",
        open_to_owner=True,
    ),
    Reason.BEYOND_PER_DEVICE: ReasonInfo(
        "beyond per_device: no room on the spread device",
        "Lower the count, or raise per_device. A pod that has the device keeps it.",
        open_to_owner=True,
        deliberate=True,
    ),
    Reason.SURPLUS: ReasonInfo(
        "surplus: beyond phones.count",
        "The count was lowered. The phone is removed when its pod has ended.",
        open_to_owner=True,
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
    def open_to_owner(self) -> bool:
        """Whether the pod that has the device may start its container again."""
        return REASONS[self.reason].open_to_owner

    @property
    def closed_to_claims(self) -> bool:
        """Whether a claim that was allocated the device cannot have it."""
        return not self.open_to_owner or REASONS[self.reason].closed_to_claims

    @property
    def in_use(self) -> bool:
        """Whether another pod has the device."""
        return REASONS[self.reason].in_use


def requirement_missing(paths: Sequence[str]) -> HealthProblem | None:
    """Return REQUIREMENT_MISSING if these devices of the host are missing; None if there are none."""
    reason, more = Reason.REQUIREMENT_MISSING, len(paths) - _MAX_NAMED
    text = ", ".join(paths[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    return HealthProblem(reason, f"{reason}: {text}") if paths else None
