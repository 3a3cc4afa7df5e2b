"""Is this node fit to be handed out, and if not, why; and what becomes of a node from one look to the next.

Functions of their inputs: the nodes of a look, the time, and a probe that the caller gives.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import BinderDevice, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aosp_plugin.binder.discovery.binder_device import FileSystem


class Reason(enum.StrEnum):
    """Why a device is Unhealthy, in the words of logs, metrics and error texts."""

    MISSING = "missing"
    """The file is gone, or its link leads nowhere."""
    INCOMPLETE = "incomplete"
    """A node of the set is missing."""
    NOT_A_DEVICE = "not-a-device"
    """Something else than a character device stands there."""
    NOT_BINDER = "not-binder"
    """The device number is another driver's: KVM's was once found under a binder name."""
    REPLACED = "replaced"
    """It is on another file system than at first: the binderfs was mounted anew, and running containers hold
    nodes of the old one."""
    NOT_RECREATED = "not-recreated"
    """A new one could not be put in its place before a container started, and it may still be the last tenant's."""
    PROBE_FAILED = "probe-failed"
    """The driver did not answer BINDER_VERSION with 8."""


class Verify(enum.StrEnum):
    """How much a node must show before it is handed out; each level asks for what the one before it does."""

    FILE = "file"
    CHAR = "char"
    BINDER = "binder"
    PROBE = "probe"


_BINDER_ONLY = frozenset({Verify.BINDER, Verify.PROBE})
_NOT_BINDER = frozenset({Kind.STAND_IN, Kind.FILE})


class TrackedDevice(NamedTuple):
    """A node as of the last look, and what is remembered of it."""

    node: BinderDevice
    file_system: FileSystem | None
    """That of the first look that found it fit; None where none has yet, so that no container can have it."""
    reason: Reason | None
    """None: fit to be handed out."""
    since: float
    """When the reason became what it is, in seconds of the caller's clock."""


def judge(
    node: BinderDevice,
    verify: Verify,
    file_system: FileSystem | None,
    probe: Callable[[BinderDevice], bool] | None = None,
) -> Reason | None:
    """Say why ``node`` can't be handed out, or None if it can.

    ``file_system`` is the one it must still be on (None: any). ``probe`` opens the node and asks the driver;
    it is called at ``Verify.PROBE`` only, and last, since it is the one test that costs more than a look.
    """
    if node.identity is None:
        return Reason.MISSING
    if node.kind is Kind.OTHER or (node.kind is Kind.FILE and verify is not Verify.FILE):
        return Reason.NOT_A_DEVICE
    if verify in _BINDER_ONLY and node.kind in _NOT_BINDER:
        return Reason.NOT_BINDER
    if file_system is not None and file_system != node.identity.file_system:
        return Reason.REPLACED
    if verify is Verify.PROBE and probe is not None and not probe(node):
        return Reason.PROBE_FAILED
    return None


def follow(
    before: Mapping[str, TrackedDevice],
    nodes: Iterable[BinderDevice],
    now: float,
    missing_device_ttl: float,
    judgement: Callable[[BinderDevice, FileSystem | None], Reason | None],
) -> dict[str, TrackedDevice]:
    """Return what is known after a look that found ``nodes``, given what was known ``before``.

    A node that is no longer there stays as missing for ``missing_device_ttl`` seconds. A node that was missing or
    replaced for so long counts as a new one: its file system of today is the right one from then on.
    """
    after: dict[str, TrackedDevice] = {}
    file_systems: dict[FileSystem, FileSystem] = {}  # each is kept once, rather than once a node
    for node in nodes:
        known = before.get(node.name)
        if known is not None and _expired(known, now, missing_device_ttl):
            known = None
        after[node.name] = _next(known, node, now, judgement, file_systems)
    for name, known in before.items():
        if name not in after and not _expired(known, now, missing_device_ttl):
            absent = BinderDevice(name, known.node.path, Kind.ABSENT)
            after[name] = _next(known, absent, now, judgement, file_systems)
    return after


def _expired(known: TrackedDevice, now: float, missing_device_ttl: float) -> bool:
    return known.reason in {Reason.MISSING, Reason.REPLACED} and now - known.since >= missing_device_ttl


def _next(
    known: TrackedDevice | None,
    node: BinderDevice,
    now: float,
    judgement: Callable[[BinderDevice, FileSystem | None], Reason | None],
    file_systems: dict[FileSystem, FileSystem],
) -> TrackedDevice:
    file_system = known.file_system if known is not None else None
    reason = judgement(node, file_system)
    if reason is None and node.identity is not None:
        file_system = file_systems.setdefault(node.identity.file_system, node.identity.file_system)
    since = known.since if known is not None and known.reason is reason else now
    tracked = TrackedDevice(node, file_system, reason, since)
    return known if tracked == known else tracked
