"""Why a device is unhealthy: the reasons, and what is required of a healthy one.

``store.evaluate`` has the rules for a binder device, and ``backend.scanned`` those for a whole device.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

_MAX_NAMED = 4
"""Devices in the text of a problem; a host without loop devices lacks thousands."""


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
    """Another device of the host that each container of the resource requires, or that this one has by its number, does
    not exist; or its spread device has no room for it."""
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


def requirement_missing(paths: Sequence[str]) -> HealthProblem | None:
    """Return REQUIREMENT_MISSING if these devices of the host are missing; None if there are none."""
    reason, more = Reason.REQUIREMENT_MISSING, len(paths) - _MAX_NAMED
    text = ", ".join(paths[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    return HealthProblem(reason, f"{reason}: {text}") if paths else None
