"""The claims of a driver on this host: the devices of the backend, and the CDI specs that record them.

Each method is one call in the worker thread, and holds the lock of the specs. Order in a preparation: devices, spec. In
a release: devices, spec. A process that is killed in between leaves devices without a spec, which the next repair or
the next preparation releases, or a spec without devices, which the next repair prepares again, until the kubelet
repeats its call.
"""

from __future__ import annotations

import contextlib
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.dra import checkpoint
from aosp_plugin.framework.errors import BackendError, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.devices import ContainerEdits
    from aosp_plugin.framework.dra.claim_records import ClaimRecord, PreparedDevice
    from aosp_plugin.framework.dra.claim_specs import ClaimSpecs
    from aosp_plugin.framework.observer import Repaired

LOG = logging.getLogger(__name__)


class Conflict(NamedTuple):
    """A device of the claim is still prepared for another one."""

    other: ClaimRecord


class ClaimHost:
    """The claims of one driver on this host. To be used in the worker thread."""

    def __init__(
        self, backend: Backend, specs: ClaimSpecs, repaired: Callable[[Repaired, bool], None] = lambda _kind, _ok: None
    ) -> None:
        """``repaired`` is called after each repair, with whether it succeeded. The host is not accessed."""
        self._backend = backend
        self.specs = specs
        self._repaired = repaired
        self._restored = False

    def prepare(self, wanted: ClaimRecord, check: Callable[[], None]) -> tuple[PreparedDevice, ...] | Conflict:
        """Prepare a claim, unless another claim has one of its devices.

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
                    return Conflict(other)
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
            if record is not None:
                self._release(record)
            return record is not None

    def repair(self, ended: Mapping[str, ClaimRecord] = MappingProxyType({})) -> Mapping[str, Exception]:
        """Make devices and specs match the records, and release what has none; return what failed.

        ``ended`` are claims that do not exist any more, by UID; those whose record still is this one are released. The
        errors are by UID, with an empty one for devices of no claim; the next call tries again. The first call of a
        process prepares every claim again, also those of the checkpoint of an earlier version. Raises OSError and
        PluginError if no claim can be repaired, because the records cannot be read.
        """
        with self.specs.locked():
            first, self._restored = not self._restored, True
            self.specs.sweep()
            problems: dict[str, Exception] = {}
            claims = list(self.specs.records.values())
            try:
                claims += self._of_earlier_version() if first else ()
            except (OSError, PluginError) as error:
                problems[""] = error
            for record in claims:
                try:
                    if ended.get(record.uid) == record:
                        self._release_ended(record)
                    else:
                        self._repair(record, first=first)
                except (OSError, PluginError) as error:
                    problems[record.uid] = error
            try:
                if first and not problems:
                    checkpoint.remove(self.specs.state_directory)
                for uid in [uid for uid in self.specs.unusable() if uid not in problems]:
                    self.specs.remove(uid)
                    fields = {"uid": uid, "path": self.specs.path(uid)}
                    LOG.info("CDI spec without a prepared claim removed", extra=fields)
                self._backend.retain([device_id for record in claims for device_id in record.ids])
            except (OSError, PluginError) as error:
                problems[""] = error
            return problems

    def _of_earlier_version(self) -> list[ClaimRecord]:
        """Return the claims that an earlier version has prepared without a record in their spec."""
        taken = {device_id for record in self.specs.records.values() for device_id in record.ids}
        recorded = checkpoint.read(self.specs.state_directory, self.specs.boot)
        return [record for record in recorded if taken.isdisjoint(record.ids)]

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

    def _release_ended(self, record: ClaimRecord) -> None:
        try:
            with self._reporting("claim"):
                self._release(record)
        except (OSError, PluginError) as error:
            raise BackendError(f"claim {record.label} is gone, and cannot be unprepared: {error}") from error
        fields = {"claim": record.full_name, "uid": record.uid, "device": ",".join(record.ids)}
        LOG.warning("claim does not exist any more, unprepared", extra=fields)

    def _repair(self, record: ClaimRecord, *, first: bool) -> None:
        if first:
            self._prepare(record)
            return
        are_prepared = self._backend.is_prepared(record.ids)
        if are_prepared and not self.specs.is_lost(record.uid):
            return
        with self._reporting("spec" if are_prepared else "mount"):
            self._prepare(record)
        if are_prepared:
            fields = {"uid": record.uid, "path": self.specs.path(record.uid)}
            LOG.warning("CDI spec of a claim lost, written again", extra=fields)
        else:
            fields = {"claim": record.full_name, "uid": record.uid, "device": ",".join(record.ids)}
            LOG.warning("devices of a claim lost, prepared again", extra=fields)

    @contextlib.contextmanager
    def _reporting(self, kind: Repaired) -> Iterator[None]:
        """Report the repair in the context."""
        try:
            yield
        except (OSError, PluginError):
            self._repaired(kind, False)  # noqa: FBT003 - a callback
            raise
        self._repaired(kind, True)  # noqa: FBT003 - a callback
