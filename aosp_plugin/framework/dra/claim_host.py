"""The claims of a driver on this host: the devices of the backend, and the CDI specs that record them.

``ClaimHost`` prepares, releases and repairs claims. Each of its methods is one call in the worker thread, and holds the
lock of the specs. Order in a preparation: devices, spec. In a release: devices, spec. A process that is killed in
between leaves devices without a spec, which the next repair or the next preparation releases, or a spec without
devices, which the next repair prepares again, until the kubelet repeats its call.

``ClaimSpecs`` are the records of prepared claims: one CDI spec per claim, with one device per allocation.

The kubelet passes the names of the CDI devices to the container runtime, for each container those of its requests. The
names have the UID of the claim, because a runtime may remember a name's earlier meaning.

A spec carries the claim, its devices and the boot ID in an annotation. It is written when the devices are prepared and
removed when they are released, so whoever reads the directory knows which claims are prepared. After a reboot, mounts
and processes are gone, and the kubelet prepares each claim again: a spec of another boot counts for nothing. For the
same reason, specs are not synced to the disk, which would take most of the time of a preparation.

In a rolling update, two processes of the driver run for some seconds, and the kubelet calls either of them. Each access
holds a lock, and reads the directory first. A process that hangs with the lock is like a host that hangs: the worker
thread waits, requests end at their deadline, and ``/readyz`` says what hangs.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.cdi import CdiDevice, encode, qualified_name, spec_of, translate_errors
from aosp_plugin.framework.devices import ContainerEdits
from aosp_plugin.framework.dra.checkpoint import checkpoint_exists, forget_claim, read_checkpoint, remove_checkpoint
from aosp_plugin.framework.dra.claim_records import ClaimRecord, PreparedDevice
from aosp_plugin.framework.dra.driver_names import claim_kind
from aosp_plugin.framework.errors import BackendError, ClaimRecordError, PluginError
from aosp_plugin.framework.observer import Repaired

LOG = logging.getLogger(__name__)

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"

_SPEC_MODE = 0o600
"""For the container runtime, which runs as root: parameters of claims may be confidential."""

_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?")


def uid_problem(uid: str) -> str | None:
    """Return why a UID cannot be part of file and device names; None if it can."""
    return None if _UID.fullmatch(uid) else f"the UID {uid!r} has other characters than letters, digits and dashes"


class _Annotation(msgspec.Struct):
    boot: str
    claim: ClaimRecord


class _Spec(msgspec.Struct):
    annotations: dict[str, str] = {}


class _File(NamedTuple):
    """The spec file of a claim."""

    identity: tuple[int, ...] | None
    """What distinguishes it from one that replaces it; None if it is lost."""
    record: ClaimRecord | None
    """None if it carries no record of this boot."""


class ClaimSpecs:
    """The specs of one driver's claims. To be used in the worker thread, except for ``records``."""

    def __init__(
        self,
        driver: str,
        *,
        state_directory: str,
        cdi_directory: str,
        changed: Callable[[], None] = lambda: None,
        boot_id_file: str = BOOT_ID_FILE,
    ) -> None:
        """Directories are paths of this process, and created when they are needed; the first one is for the lock.

        ``changed`` is called in the worker thread after each change of ``records``.
        """
        self.directory = cdi_directory
        self.state_directory = state_directory
        self._kind = claim_kind(driver)
        self._annotation = f"{driver}/claim"
        self._changed = changed
        self._boot_id_file = boot_id_file
        self._boot = ""
        self._lock = os.path.join(state_directory, "lock")
        self._token = os.urandom(16).hex().encode()
        # As the CDI library names them (pkg/cdi/spec.go, GenerateTransientSpecName): <vendor>-<class>_<id>.
        self._stem = f"{self._kind.replace('/', '-')}_"
        self._file_name = re.compile(rf"{re.escape(self._stem)}({_UID.pattern})\.json")
        self._files: dict[str, _File] = {}
        self.adopted: set[str] = set()
        """The UIDs of the claims of an earlier version that have no spec yet."""
        self.records: Mapping[str, ClaimRecord] = MappingProxyType({})
        """The prepared claims by UID, as they were last read or written; replaced by a single assignment."""

    @property
    def boot(self) -> str:
        """What distinguishes this boot of the host from others. Raises OSError."""
        if not self._boot:
            with open(self._boot_id_file, encoding="ascii") as file:
                self._boot = file.read().strip()
        return self._boot

    def path(self, uid: str) -> str:
        """Return the path of the spec of a claim."""
        return os.path.join(self.directory, f"{self._stem}{uid}.json")

    @contextlib.contextmanager
    def locked(self, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Exclude other processes inside the context, with ``records`` as they have left them.

        ``check`` is called when the lock is held, and may raise an error. If no other process of the driver has held
        the lock since, a spec that is gone or another one was lost: its record stays. Raises OSError, CdiError and
        ClaimRecordError.
        """
        descriptor = self._acquire()
        try:
            check()
            alone = os.pread(descriptor, len(self._token), 0) == self._token
            alone = alone and not checkpoint_exists(self.state_directory)
            self.read(alone=alone)
            if not alone:
                os.ftruncate(descriptor, 0)  # needs no space: the token of another process is gone in any case
                with contextlib.suppress(OSError):  # no space: what is lost then stays lost
                    os.pwrite(descriptor, self._token, 0)
            yield
        finally:
            os.close(descriptor)

    def adopt(self, claims: Iterable[ClaimRecord]) -> None:
        """Add the claims of an earlier version that no spec records, unless a recorded one has their devices.

        They count as claims whose specs are lost, until they have one or are released, whoever has held the lock.
        """
        taken = {device_id for record in self.records.values() for device_id in record.ids}
        new = {claim.uid: _File(None, claim) for claim in claims if taken.isdisjoint(claim.ids)}
        self.adopted.update(new)
        self._set({**self._files, **new})

    def write(self, record: ClaimRecord, edits: Mapping[str, ContainerEdits]) -> tuple[PreparedDevice, ...]:
        """Write the spec of a claim, even if it has this content, and return what the kubelet gets.

        ``edits`` are those of each device, by its ID. A device without edits has no CDI device, because no runtime
        accepts that; the first device of a request may bring what all of them need. A runtime caches device numbers
        until the file changes, so that it is replaced also after a repair. Raises CdiError, and BackendError for edits
        that CDI does not have.
        """
        prepared, in_spec = [], []
        for request in record.requests:
            for device in request.devices:
                own = edits[device.id]
                if own.annotations:
                    raise BackendError(f"device {device.id}: annotations of a container are not possible for claims")
                cdi_devices = tuple(own.cdi_devices)
                if own.devices or own.mounts or own.environment:
                    name = f"{record.uid}-{device.name}"
                    in_spec.append(CdiDevice(name, own))
                    cdi_devices = (qualified_name(self._kind, name), *cdi_devices)
                prepared.append(PreparedDevice((request.main_name,), device.pool, device.name, cdi_devices))
        if not in_spec:  # a spec must have a device; no container gets this one
            in_spec.append(CdiDevice(record.uid, ContainerEdits(environment={"CLAIM": record.uid})))
        # In ASCII: a parameter may have characters that are not allowed in YAML.
        annotation = json.dumps(msgspec.to_builtins(_Annotation(self.boot, record)))
        content = encode(spec_of(self._kind, in_spec, {self._annotation: annotation}))
        path = self.path(record.uid)
        with translate_errors(path):
            atomic_file.make_directory(self.directory)
            status = atomic_file.replace(path, content, _SPEC_MODE)
        self.adopted.discard(record.uid)
        self._set({**self._files, record.uid: _File(atomic_file.identity(status), record)})
        return tuple(prepared)

    def remove(self, uid: str) -> None:
        """Remove the spec of a claim, whether it exists or not. Raises OSError, CdiError and ClaimRecordError."""
        path = self.path(uid)
        forget_claim(self.state_directory, self.boot, uid)
        with translate_errors(path):
            atomic_file.remove(path)
        self.adopted.discard(uid)
        self._set({other: file for other, file in self._files.items() if other != uid})

    def is_lost(self, uid: str) -> bool:
        """Return whether the spec of a prepared claim is gone or another one."""
        return self._files[uid].identity is None

    def unusable(self) -> list[str]:
        """Return the UIDs of the claims whose spec carries no record, or one of another boot."""
        return [uid for uid, file in self._files.items() if file.record is None]

    def sweep(self) -> None:
        """Remove the temporary files that killed processes left: none is in use, because the lock is held."""
        with contextlib.suppress(OSError):  # what matters fails, too, and is reported
            atomic_file.sweep(self.directory, self._file_name.pattern, age=0)

    def read(self, *, alone: bool = False) -> None:
        """Read ``records``; see ``locked``. No lock is needed to look at them once. Raises OSError and CdiError."""
        found: dict[str, _File] = {}
        with (
            translate_errors(self.directory),
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.directory) as all_,
        ):
            for entry in all_:
                if (match := self._file_name.fullmatch(entry.name)) is None:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    identity = atomic_file.identity(entry.stat(follow_symlinks=False))
                    known = self._files.get(match[1])
                    if known is None or known.identity != identity:
                        is_file = entry.is_file(follow_symlinks=False)  # opening a FIFO would hang
                        known = _File(identity, self._carried(match[1]) if is_file else None)
                    found[match[1]] = known
        recorded = {uid for uid, file in found.items() if file.record is not None}
        for uid, known in self._files.items():
            is_lost = known.record is not None and found.get(uid) is not known
            if is_lost and (alone or uid in self.adopted - recorded):
                found[uid] = _File(None, known.record)
        self.adopted -= recorded
        self._set(found)

    def _carried(self, uid: str) -> ClaimRecord | None:
        """Return the record in the spec of a claim. Raises OSError if it cannot be read."""
        try:
            with open(self.path(uid), "rb") as file:
                content = file.read()
            annotation = msgspec.json.decode(content, type=_Spec).annotations[self._annotation]
            carried = msgspec.json.decode(annotation, type=_Annotation)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
            return None
        return carried.claim if carried.boot == self.boot and carried.claim.uid == uid else None

    def _set(self, files: dict[str, _File]) -> None:
        self._files = files
        records = {uid: file.record for uid, file in files.items() if file.record is not None}
        if records != self.records:
            self.records = MappingProxyType(records)
            self._changed()

    def _acquire(self) -> int:
        """Lock the file as soon as no other process has it, and return its descriptor. Raises ClaimRecordError."""
        try:
            os.makedirs(os.path.dirname(self.state_directory), exist_ok=True)
            atomic_file.make_directory(self.state_directory, 0o750)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            raise ClaimRecordError(f"cannot lock {self._lock}: {error.strerror}") from error
        return descriptor


class Repairs(NamedTuple):
    """What a repair has done."""

    failed: Mapping[str, Exception]
    """What could not be repaired or released, by the UID of the claim; an empty one is for devices of no claim."""
    done: Sequence[tuple[Repaired, Literal["ok", "failed"]]]
    """What was lost, or was of claims that are gone, with how its repair ended."""


class ClaimHost:
    """The claims of one driver on this host. To be used in the worker thread."""

    def __init__(self, backend: Backend, specs: ClaimSpecs) -> None:
        """Create it without an access to the host."""
        self._backend = backend
        self.specs = specs
        self._restored = False

    def prepare(self, wanted: ClaimRecord, check: Callable[[], None]) -> tuple[PreparedDevice, ...] | ClaimRecord:
        """Prepare a claim, and return its devices; return another claim that still has one of them.

        The devices of a claim that is prepared already stay as they are, and its spec is written again. ``check`` is
        called when the lock is held, and raises an error if the caller has given up. Raises OSError and PluginError.
        """
        with self.specs.locked(check):
            existing = self.specs.records.get(wanted.uid)
            if existing == wanted:
                return self._prepare(wanted)
            if existing is not None:  # allocated again since
                self._release(existing)
            ids = frozenset(wanted.ids)
            for other in self.specs.records.values():
                if not ids.isdisjoint(other.ids):
                    return other
            try:
                self._backend.unprepare(wanted.ids)  # what an earlier claim has left
                return self._prepare(wanted)
            except BaseException:
                self._roll_back(wanted)
                raise

    def unprepare(self, uid: str) -> bool:
        """Release a claim; return whether there was anything to release. Unknown claims are no error.

        Raises OSError and PluginError; the record then stays.
        """
        with self.specs.locked():
            record = self.specs.records.get(uid)
            if record is None:
                forget_claim(self.specs.state_directory, self.specs.boot, uid)
            else:
                self._release(record)
            return record is not None

    def repair(
        self, ended: Mapping[str, ClaimRecord] = MappingProxyType({}), before: Callable[[], None] = lambda: None
    ) -> Repairs:
        """Make devices and specs match the records, and release what has none; the next call retries what failed.

        ``before`` is called first, without the lock. ``ended`` are claims that do not exist any more, by UID; those
        whose record still is this one are released. The first call of a process prepares every claim again, also those
        of the checkpoint of an earlier version. Raises OSError and PluginError if no claim can be repaired, because the
        records cannot be read.
        """
        before()
        with self.specs.locked():
            if first := not self._restored:
                self.specs.adopt(read_checkpoint(self.specs.state_directory, self.specs.boot))
                self._restored = True
            self.specs.sweep()
            problems: dict[str, Exception] = {}
            done: list[tuple[Repaired, Literal["ok", "failed"]]] = []
            claims = list(self.specs.records.values())
            for record in claims:
                kind: Repaired | None = None
                try:
                    kind = "claim" if ended.get(record.uid) == record else None if first else self._lost(record)
                    self._repair(record, kind, first=first)
                except (OSError, PluginError) as error:
                    problems[record.uid] = error
                if kind is not None:
                    done.append((kind, "failed" if record.uid in problems else "ok"))
            try:
                if not self.specs.adopted:
                    remove_checkpoint(self.specs.state_directory)
                for uid in [uid for uid in self.specs.unusable() if uid not in problems]:
                    self.specs.remove(uid)
                    fields = {"uid": uid, "path": self.specs.path(uid)}
                    LOG.info("CDI spec without a prepared claim removed", extra=fields)
                self._backend.retain([device_id for record in claims for device_id in record.ids])
            except (OSError, PluginError) as error:
                problems[""] = error
            return Repairs(problems, done)

    def _prepare(self, record: ClaimRecord) -> tuple[PreparedDevice, ...]:
        """Prepare the devices, which stay as they are if they are prepared, and write the spec."""
        edits: dict[str, ContainerEdits] = {}
        for request in record.requests:
            found = self._backend.prepare(request.ids, request.parameters)
            if len(found) != len(request.ids):
                raise BackendError(f"{len(request.ids)} devices were prepared, and {len(found)} results returned")
            edits.update(zip(request.ids, found, strict=True))
        return self.specs.write(record, edits)

    def _roll_back(self, record: ClaimRecord) -> None:
        try:
            self._release(record)
        except (OSError, PluginError) as error:
            fields = {"claim": record.full_name, "uid": record.uid, "error": str(error)}
            LOG.error("claim rollback failed, retrying", extra=fields)  # noqa: TRY400 - an expected error

    def _release(self, record: ClaimRecord) -> None:
        others = [other for other in self.specs.records.values() if other.uid != record.uid]
        taken = {device_id for other in others for device_id in other.ids}
        self._backend.unprepare([device_id for device_id in record.ids if device_id not in taken])
        self.specs.remove(record.uid)

    def _lost(self, record: ClaimRecord) -> Repaired | None:
        """Return what of a prepared claim is lost."""
        if not self._backend.is_prepared(record.ids):
            return "mount"
        return "spec" if self.specs.is_lost(record.uid) else None

    def _repair(self, record: ClaimRecord, kind: Repaired | None, *, first: bool) -> None:
        fields = {"claim": record.full_name, "uid": record.uid, "device": ",".join(record.ids)}
        if kind == "claim":
            self._release(record)
            LOG.warning("claim does not exist any more, unprepared", extra=fields)
            return
        if kind is not None or first:
            self._prepare(record)
        if kind == "mount":
            LOG.warning("devices of a claim lost, prepared again", extra=fields)
        elif kind == "spec":
            fields = {"uid": record.uid, "path": self.specs.path(record.uid)}
            LOG.warning("CDI spec of a claim lost, written again", extra=fields)
