"""Why a device is unhealthy: the reasons, and the rules that produce them.

``evaluate`` derives the health of a binder device from a scan, and ``aggregate`` the health of a device set from its
members. All are functions of their arguments; ``store`` keeps what they need from scan to scan, and ``backend.scanned``
adds what else has a say.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from aosp_plugin.binder.devices.scanner import BinderDevice, FileSystem, Kind


class Reason(enum.StrEnum):
    """Why a device is unhealthy, as in logs, metrics and errors. Earlier reasons take precedence in a device set."""

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
    REPLACED = "replaced"
    """The file is on another file system than before: the binderfs was mounted again, and running containers may have
    devices of the old one."""
    NOT_RECREATED = "not-recreated"
    """The binder device could not be recreated, and a former tenant may still have it open."""
    PROBE_FAILED = "probe-failed"
    """BINDER_VERSION failed, or returned another version than 8."""
    REQUIREMENT_MISSING = "requirement-missing"
    """Another device of the host that each container of the resource requires, or the spread device of this one, does
    not exist."""
    IN_USE_BY_OTHER_API = "in-use-by-other-api"
    """A pod still has the device through the device plugin API, and the resource is now served by DRA; or vice
    versa."""
    NOT_IN_CDI_SPEC = "not-in-cdi-spec"
    """Containers get the device by the CDI spec only, and the spec that has it could not be written."""
    SURPLUS = "surplus"
    """The configured count of phones is lower than the number of this one: it is removed when its pod has ended."""


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


def evaluate(device: BinderDevice, verify: Verify, file_system: FileSystem | None) -> Reason | None:
    """Return why a binder device is unhealthy, or None if it is healthy, unless a probe fails.

    ``file_system`` is the one it must be on (None: any).
    """
    kind, identity = device.kind, device.identity
    if identity is None:
        return Reason.MISSING
    if kind is Kind.OTHER or (kind is Kind.FILE and verify is not Verify.FILE):
        return Reason.NOT_A_DEVICE
    if (kind is Kind.STAND_IN or kind is Kind.FILE) and (verify is Verify.BINDER or verify is Verify.PROBE):
        return Reason.NOT_BINDER
    if file_system is not None and file_system != identity.file_system:
        return Reason.REPLACED
    return None


def requirement_missing(paths: Sequence[str]) -> HealthProblem | None:
    """Return REQUIREMENT_MISSING if these devices of the host are missing; None if there are none."""
    reason = Reason.REQUIREMENT_MISSING
    return HealthProblem(reason, f"{reason}: {', '.join(paths)}") if paths else None


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
