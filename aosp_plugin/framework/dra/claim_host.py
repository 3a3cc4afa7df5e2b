"""The claims of a driver on this host: their records, their CDI specs, and the devices of the backend.

Each method is one call in the worker thread, and holds the lock of the driver's directory. It first reads what another
process of the driver may have changed. A record in the state ``started`` therefore belongs to a preparation that was
interrupted: no other can be running.

Order in a preparation: record (started), devices, spec, record (completed). In a release: spec, devices, record. So
whatever exists of a claim has a record at any time, and is found after a crash.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.errors import BackendError, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.dra.claim_spec import Described
    from aosp_plugin.framework.dra.claim_state import ClaimState
    from aosp_plugin.framework.dra.interfaces import PreparedDevice
    from aosp_plugin.framework.dra.records import ClaimRecord
    from aosp_plugin.framework.edits import ContainerEdits

LOG = logging.getLogger(__name__)


class Conflict(NamedTuple):
    """A device of the claim is still prepared for another one."""

    other: ClaimRecord


class ClaimHost:
    """The claims of one driver on this host. To be used in the worker thread, except for ``records``, ``problems``."""

    def __init__(self, backend: Backend, state: ClaimState) -> None:
        """``state`` is used by this object alone. The host is not accessed."""
        self._backend = backend
        self._state = state
        self._described: dict[str, tuple[ClaimRecord, Described]] = {}
        """What was last written for each claim, by UID, with the record that it belongs to."""
        self.problems: Mapping[str, Exception] = MappingProxyType({})
        """Why a claim could not be repaired or released, by UID; an empty UID is for devices of no claim. Replaced by a
        single assignment."""

    @property
    def records(self) -> Mapping[str, ClaimRecord]:
        """The claims by UID. May be read in any thread."""
        return self._state.records

    @property
    def directories(self) -> frozenset[str]:
        """The directories with records and specs, as paths of this process."""
        return frozenset({self._state.state_directory, self._state.cdi_directory})

    def prepare(self, wanted: ClaimRecord, check: Callable[[], None]) -> tuple[PreparedDevice, ...] | Conflict:
        """Prepare a claim, unless another claim has one of its devices.

        A claim that is prepared already stays as it is, and its spec is written again. ``check`` is called when the
        lock is held, and raises an error if the caller has given up. After an error, nothing of the claim is left, or
        it has a record that ``repair`` removes. Raises OSError and PluginError.
        """
        with self._state.locked(check):
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
        with self._state.locked():
            record = self.records.get(uid)
            return record if record is not None and record.completed else None

    def unprepare(self, uid: str, only: ClaimRecord | None = None) -> bool:
        """Release a claim; return whether there was anything to release. Unknown claims are no error.

        ``only``: release the claim only if its record still is this one. Raises OSError and PluginError; the record
        then stays.
        """
        with self._state.locked():
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
        with self._state.locked():
            self._state.sweep()
            self._described = {uid: known for uid, known in self._described.items() if uid in self.records}
            problems: dict[str, Exception] = {}
            for record in list(self.records.values()):
                try:
                    self._repair(record, rewrite=rewrite)
                except (OSError, PluginError) as error:
                    problems[record.uid] = error
            for uid in self._state.specs.uids():
                if uid not in self.records:
                    try:
                        self._remove_orphan(uid)
                    except (OSError, PluginError) as error:
                        problems[uid] = error
            try:
                self._backend.retain([device_id for record in self.records.values() for device_id in record.ids])
            except (OSError, PluginError) as error:
                problems[""] = error
            self._set_problems(problems)

    def restore_files(self) -> None:
        """Write specs and checkpoint again if they are missing. Cheap; raises OSError and PluginError."""
        with self._state.locked():
            for record in list(self.records.values()):
                described = self._last_described(record)
                if described is not None and described.spec and not self._state.specs.exists(record.uid):
                    self._write_lost(record.uid, described)

    def _prepare_first(self, wanted: ClaimRecord) -> tuple[PreparedDevice, ...]:
        record = wanted.with_state("started")
        self._state.put(record)
        try:
            self._backend.unprepare(record.ids)  # what an earlier claim has left
            devices = self._prepare_again(record)
            self._state.put(record.with_state("completed"))
        except BaseException:
            self._roll_back(record)
            raise
        return devices

    def _prepare_again(self, record: ClaimRecord) -> tuple[PreparedDevice, ...]:
        """Prepare the devices, which stay as they are if they are prepared, and write the spec."""
        described = self._describe(record)
        self._state.specs.write(record.uid, described.spec)
        self._described[record.uid] = (record, described)
        return described.devices

    def _describe(self, record: ClaimRecord) -> Described:
        edits: dict[str, ContainerEdits] = {}
        for request in record.requests:
            found = self._backend.prepare(request.ids, request.claim_parameters)
            if len(found) != len(request.ids):
                raise BackendError(f"{len(request.ids)} devices were prepared, and {len(found)} results returned")
            edits.update(zip(request.ids, found, strict=True))
        return self._state.specs.describe(record, edits)

    def _roll_back(self, record: ClaimRecord) -> None:
        try:
            self._release(record)
        except (OSError, PluginError) as error:
            fields = {"claim": record.full_name, "uid": record.uid, "error": str(error)}
            LOG.error("claim rollback failed, retrying", extra=fields)  # noqa: TRY400 - an expected error

    def _release(self, record: ClaimRecord) -> None:
        self._described.pop(record.uid, None)
        self._state.specs.remove(record.uid)
        self._backend.unprepare(record.ids)
        self._state.drop(record.uid)

    def _repair(self, record: ClaimRecord, *, rewrite: bool) -> None:
        if not record.completed:
            self._release(record)
            fields = {"claim": record.full_name, "uid": record.uid}
            LOG.warning("claim preparation was interrupted, rolled back", extra=fields)
            return
        described = self._last_described(record)
        if rewrite or described is None:
            self._prepare_again(record)
        elif not self._backend.is_prepared(record.ids):
            self._repair_devices(record)
        elif self._state.specs.read(record.uid) != described.spec:
            self._write_lost(record.uid, described)

    def _repair_devices(self, record: ClaimRecord) -> None:
        try:
            self._prepare_again(record)
        except (OSError, PluginError):
            self._state.repaired("mount", False)  # noqa: FBT003 - a callback
            raise
        fields = {"claim": record.full_name, "uid": record.uid, "device": ",".join(record.ids)}
        LOG.warning("devices of a claim lost, prepared again", extra=fields)
        self._state.repaired("mount", True)  # noqa: FBT003 - a callback

    def _last_described(self, record: ClaimRecord) -> Described | None:
        """Return what was last written for a claim; None if another process has prepared it, with other devices."""
        known = self._described.get(record.uid)
        return known[1] if known is not None and known[0].requests == record.requests else None

    def _write_lost(self, uid: str, described: Described) -> None:
        try:
            self._state.specs.write(uid, described.spec)
        except PluginError:
            self._state.repaired("spec", False)  # noqa: FBT003 - a callback
            raise
        LOG.warning("CDI spec of a claim lost, written again", extra={"uid": uid, "path": self._state.specs.path(uid)})
        self._state.repaired("spec", True)  # noqa: FBT003 - a callback

    def _remove_orphan(self, uid: str) -> None:
        """Remove a spec without a record, and release its devices unless another claim has them."""
        carried = self._state.specs.carried(uid)
        taken = {device_id for record in self.records.values() for device_id in record.ids}
        if carried is not None and (free := [device_id for device_id in carried.ids if device_id not in taken]):
            self._backend.unprepare(free)
        self._state.specs.remove(uid)
        LOG.info("CDI spec without a prepared claim removed", extra={"uid": uid, "path": self._state.specs.path(uid)})

    def _set_problems(self, problems: Mapping[str, Exception]) -> None:
        for uid, problem in problems.items():
            if str(self.problems.get(uid)) != str(problem):
                LOG.error("claim repair failed, retrying", extra={"uid": uid, "error": str(problem)})
        for uid in self.problems.keys() - problems.keys():
            LOG.info("claim repair recovered", extra={"uid": uid})
        self.problems = MappingProxyType(dict(problems))
