"""The claims of a driver on this host: their records, their CDI specs, and the devices of the backend.

Each method is one call in the worker thread, and holds the lock of the driver's directory. It first reads what another
process of the driver may have changed. A record in the state ``started`` therefore belongs to a preparation that was
interrupted: no other can be running.

Order in a preparation: record (started), devices, spec, record (completed). In a release: spec, devices, record. So
whatever exists of a claim has a record at any time, and is found after a crash.
"""

from __future__ import annotations

import contextlib
import logging
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.dra.checkpoint import Checkpoint
from aosp_plugin.framework.dra.claim_spec import ClaimSpecs
from aosp_plugin.framework.dra.records import BOOT_ID_FILE, boot_id
from aosp_plugin.framework.dra.state_lock import StateLock
from aosp_plugin.framework.errors import BackendError, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.dra.claim_spec import Described
    from aosp_plugin.framework.dra.interfaces import PreparedDevice
    from aosp_plugin.framework.dra.observer import Repaired
    from aosp_plugin.framework.dra.records import ClaimRecord
    from aosp_plugin.framework.edits import ContainerEdits

LOG = logging.getLogger(__name__)


class Conflict(NamedTuple):
    """A device of the claim is still prepared for another one."""

    other: ClaimRecord


class ClaimHost:
    """The claims of one driver on this host. To be used in the worker thread, except for ``records``, ``problems``."""

    def __init__(
        self,
        backend: Backend,
        driver: str,
        *,
        state_directory: str,
        cdi_directory: str,
        changed: Callable[[], None] = lambda: None,
        repaired: Callable[[Repaired, bool], None] = lambda _kind, _ok: None,
        boot_id_file: str = BOOT_ID_FILE,
    ) -> None:
        """Directories are paths of this process, and created when they are needed. The host is not accessed.

        ``changed`` is called after each change of ``records``, and ``repaired`` after each repair, with whether it
        succeeded; both in the worker thread.
        """
        self._backend = backend
        self._driver = driver
        self.state_directory = state_directory
        self.cdi_directory = cdi_directory
        self._changed = changed
        self._repaired = repaired
        self._boot_id_file = boot_id_file
        self._lock = StateLock(state_directory)
        self._files: tuple[Checkpoint, ClaimSpecs] | None = None
        self._described: dict[str, Described] = {}
        """What was last written for each completed claim, by UID."""
        self.records: Mapping[str, ClaimRecord] = MappingProxyType({})
        """The claims by UID, as they were last read or written; replaced by a single assignment."""
        self.problems: Mapping[str, str] = MappingProxyType({})
        """Why a claim could not be repaired or released, by UID; an empty UID is for devices of no claim. Replaced by a
        single assignment."""

    def prepare(self, wanted: ClaimRecord, check: Callable[[], None]) -> tuple[PreparedDevice, ...] | Conflict:
        """Prepare a claim, unless another claim has one of its devices.

        A claim that is prepared already stays as it is, and its spec is written again. ``check`` is called when the
        lock is held, and raises an error if the caller has given up. After an error, nothing of the claim is left, or
        it has a record that ``repair`` removes. Raises OSError and PluginError.
        """
        with self._locked(check):
            existing = self.records.get(wanted.uid)
            if existing is not None:
                if existing == wanted.with_state("completed"):
                    return self._prepare_again(existing)
                self._release(existing)  # half prepared, or allocated again since
            ids = frozenset(wanted.ids)
            for other in [record for record in self.records.values() if not ids.isdisjoint(record.ids)]:
                if other.completed:
                    return Conflict(other)
                self._release(other)
            return self._prepare_first(wanted)

    def completed(self, uid: str) -> ClaimRecord | None:
        """Return the record of a claim if it is prepared. Raises OSError and PluginError."""
        with self._locked():
            record = self.records.get(uid)
            return record if record is not None and record.completed else None

    def unprepare(self, uid: str, only: ClaimRecord | None = None) -> bool:
        """Release a claim; return whether there was anything to release. Unknown claims are no error.

        ``only``: release the claim only if its record still is this one. Raises OSError and PluginError; the record
        then stays.
        """
        with self._locked():
            record = self.records.get(uid)
            if record is None or (only is not None and record != only):
                return False
            self._release(record)
            return True

    def repair(self, *, rewrite: bool = False) -> None:
        """Make devices and specs match the records, and release what has no completed record.

        ``rewrite``: prepare every claim again, and write its spec, as after the start of the process. What cannot be
        repaired is in ``problems``, and is tried again by the next call. Raises PluginError if no claim can be
        repaired, because the records cannot be read.
        """
        with self._locked():
            problems = {}
            for record in list(self.records.values()):
                try:
                    self._repair(record, rewrite=rewrite)
                except (OSError, PluginError) as error:
                    problems[record.uid] = str(error)
            for uid in self._specs.uids():
                if uid not in self.records:
                    try:
                        self._remove_orphan(uid)
                    except (OSError, PluginError) as error:
                        problems[uid] = str(error)
            try:
                self._backend.retain([device_id for record in self.records.values() for device_id in record.ids])
            except (OSError, PluginError) as error:
                problems[""] = str(error)
            self._set_problems(problems)

    def restore_files(self) -> None:
        """Write specs and checkpoint again if they are missing. Cheap; raises OSError and PluginError."""
        with self._locked():
            for uid, described in list(self._described.items()):
                if described.spec is not None and not os.path.lexists(self._specs.path(uid)):
                    self._write_lost(uid, described)

    @property
    def _checkpoint(self) -> Checkpoint:
        return self._opened()[0]

    @property
    def _specs(self) -> ClaimSpecs:
        return self._opened()[1]

    def _opened(self) -> tuple[Checkpoint, ClaimSpecs]:
        if self._files is None:
            boot = boot_id(self._boot_id_file)
            checkpoint = Checkpoint(self.state_directory, boot)
            self._files = (checkpoint, ClaimSpecs(self.cdi_directory, self._driver, boot))
        return self._files

    @contextlib.contextmanager
    def _locked(self, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        with self._lock.held():
            check()
            self._load()
            yield

    def _load(self) -> None:
        """Read the records; recover them from memory and specs if the checkpoint is lost."""
        claims, source = self._checkpoint.load()
        if source in {"missing", "rejected"}:
            claims = {**self.records, **self._carried()}
            if claims:
                self._checkpoint.save(claims)
                fields = {"path": self._checkpoint.path, "claims": len(claims)}
                LOG.warning("checkpoint of the claims lost, written again", extra=fields)
                self._repaired("checkpoint", True)  # noqa: FBT003 - a callback
        self._set_records(claims)

    def _carried(self) -> Mapping[str, ClaimRecord]:
        """Return the records that the specs of this boot carry, if their devices are not those of another record."""
        carried: dict[str, ClaimRecord] = {}
        taken = {device_id for record in self.records.values() for device_id in record.ids}
        for uid in self._specs.uids():
            record = self._specs.carried(uid)
            if record is not None and uid not in self.records and taken.isdisjoint(record.ids):
                carried[uid] = record
                taken.update(record.ids)
        return carried

    def _prepare_first(self, wanted: ClaimRecord) -> tuple[PreparedDevice, ...]:
        record = wanted.with_state("started")
        self._save({**self.records, record.uid: record})
        try:
            self._backend.unprepare(record.ids)  # what an earlier claim has left
            devices = self._prepare_again(record)
            self._save({**self.records, record.uid: record.with_state("completed")})
        except BaseException:
            self._roll_back(record)
            raise
        return devices

    def _prepare_again(self, record: ClaimRecord) -> tuple[PreparedDevice, ...]:
        """Prepare the devices, which stay as they are if they are prepared, and write the spec."""
        described = self._describe(record)
        self._specs.write(record.uid, described.spec)
        self._described[record.uid] = described
        return described.devices

    def _describe(self, record: ClaimRecord) -> Described:
        edits: dict[str, ContainerEdits] = {}
        for request in record.requests:
            found = self._backend.prepare(request.ids, request.claim_parameters)
            if len(found) != len(request.ids):
                raise BackendError(f"{len(request.ids)} devices were prepared, and {len(found)} results returned")
            edits.update(zip(request.ids, found, strict=True))
        return self._specs.describe(record, edits)

    def _roll_back(self, record: ClaimRecord) -> None:
        try:
            self._release(record)
        except (OSError, PluginError) as error:
            fields = {"claim": record.full_name, "uid": record.uid, "error": str(error)}
            LOG.error("claim rollback failed, retrying", extra=fields)  # noqa: TRY400 - an expected error

    def _release(self, record: ClaimRecord) -> None:
        self._described.pop(record.uid, None)
        self._specs.remove(record.uid)
        self._backend.unprepare(record.ids)
        self._save({uid: other for uid, other in self.records.items() if uid != record.uid})

    def _repair(self, record: ClaimRecord, *, rewrite: bool) -> None:
        if not record.completed:
            self._release(record)
            fields = {"claim": record.full_name, "uid": record.uid}
            LOG.warning("claim preparation was interrupted, rolled back", extra=fields)
            return
        described = self._described.get(record.uid)
        if rewrite or described is None:
            self._prepare_again(record)
        elif not self._backend.is_prepared(record.ids):
            self._repair_devices(record)
        elif self._specs.read(record.uid) != described.spec:
            self._write_lost(record.uid, described)

    def _repair_devices(self, record: ClaimRecord) -> None:
        try:
            self._prepare_again(record)
        except (OSError, PluginError):
            self._repaired("mount", False)  # noqa: FBT003 - a callback
            raise
        fields = {"claim": record.full_name, "uid": record.uid, "device": ",".join(record.ids)}
        LOG.warning("devices of a claim lost, prepared again", extra=fields)
        self._repaired("mount", True)  # noqa: FBT003 - a callback

    def _write_lost(self, uid: str, described: Described) -> None:
        try:
            self._specs.write(uid, described.spec)
        except PluginError:
            self._repaired("spec", False)  # noqa: FBT003 - a callback
            raise
        LOG.warning("CDI spec of a claim lost, written again", extra={"uid": uid, "path": self._specs.path(uid)})
        self._repaired("spec", True)  # noqa: FBT003 - a callback

    def _remove_orphan(self, uid: str) -> None:
        """Remove a spec without a record, and release its devices unless another claim has them."""
        carried = self._specs.carried(uid)
        taken = {device_id for record in self.records.values() for device_id in record.ids}
        if carried is not None and (free := [device_id for device_id in carried.ids if device_id not in taken]):
            self._backend.unprepare(free)
        self._specs.remove(uid)
        LOG.info("CDI spec without a prepared claim removed", extra={"uid": uid, "path": self._specs.path(uid)})

    def _save(self, claims: Mapping[str, ClaimRecord]) -> None:
        self._checkpoint.save(claims)
        self._set_records(claims)

    def _set_records(self, claims: Mapping[str, ClaimRecord]) -> None:
        if claims == self.records:
            return
        self.records = MappingProxyType(dict(claims))
        self._described = {
            uid: described for uid, described in self._described.items() if uid in claims and claims[uid].completed
        }
        self._changed()

    def _set_problems(self, problems: Mapping[str, str]) -> None:
        for uid, problem in problems.items():
            if self.problems.get(uid) != problem:
                LOG.error("claim repair failed, retrying", extra={"uid": uid, "error": problem})
        for uid in self.problems.keys() - problems.keys():
            LOG.info("claim repair recovered", extra={"uid": uid})
        self.problems = MappingProxyType(dict(problems))
