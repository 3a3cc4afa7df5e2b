"""The claims of a driver on this host: their records, the devices of the backend, and the CDI specs.

Each method of ``ClaimHost`` is one call in the worker thread, which reads the records first. Order in a preparation:
record, devices, spec. In a release: devices, spec, record. So a device is never prepared without a record.
A process that is killed in between leaves a record whose claim is prepared again by the next repair, unless the kubelet
or the API server says that it is over.

For each container, the kubelet passes the names of the CDI devices of its requests to the runtime. The names have the
UID of the claim, because a runtime may remember a name's earlier meaning. The runtime resolves the names each time that
it creates a container, without a call of the driver: a lost spec must be written again at once.
Specs are derived from the records, and in a tmpfs that other programs clean, so they are not synced to the disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.backend import Backend, ContainerEdits
from aosp_plugin.framework.cdi import CdiDevice, encode, qualified_name, spec_of, translate_errors
from aosp_plugin.framework.dra.claim_records import UID, ClaimRecord, Others, RecordStore
from aosp_plugin.framework.dra.slices import claim_kind
from aosp_plugin.framework.errors import BackendError, ClaimRecordError, FormerClaimError, PluginError
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.metrics import Repaired

LOG = logging.getLogger(__name__)

_MODE = 0o600
"""Only the container runtime, which runs as root, reads specs: parameters of claims may be confidential."""


class Repairs(NamedTuple):
    """What a repair has done."""

    failed: Mapping[str, Exception]
    """What could not be repaired or released, by the UID of the claim; an empty one is for what concerns no claim."""
    done: Sequence[tuple[Repaired, Literal["ok", "failed"]]]
    """What was lost, or was of claims that are gone, with how its repair ended."""


class ClaimHost:
    """The claims of one driver on this host. To be used in the worker thread."""

    def __init__(self, backend: Backend[Any], inventory: Inventory, store: RecordStore, specs: ClaimSpecs) -> None:
        """``inventory`` has what the scans of ``backend`` find. The host is not accessed."""
        self._backend = backend
        self._inventory = inventory
        self._store = store
        self._specs = specs
        self._prepared: set[str] = set()
        """The claims that this process has prepared."""

    def prepare(self, wanted: ClaimRecord) -> tuple[pb.Device, ...] | ClaimRecord:
        """Prepare a claim, and return its devices; return another claim that still has one of them.

        The devices of a claim that is prepared already stay as they are, and its spec is written again. Raises OSError
        and PluginError.
        """
        self._store.refresh()
        existing = self._store.records.get(wanted.uid)
        if existing == wanted:
            self._require_configured(wanted)
            return self._prepare(wanted)
        if existing is not None:  # allocated again since
            self._release(existing)
        else:
            self._require_intact()
        if (other := self._other(wanted)) is not None:
            return other
        self._record(wanted)
        try:
            # Again: another driver has its own lock, and also looks for other records after it has written its own.
            if (other := self._other(wanted)) is not None:
                self._store.remove(wanted.uid)
                return other
            self._backend.unprepare(wanted.ids)  # what an earlier claim has left
            return self._prepare(wanted)
        except BaseException:
            self._roll_back(wanted)
            raise

    def unprepare(self, uid: str) -> bool:
        """Release a claim; return whether it was known. Unknown claims are no error.

        Raises OSError and PluginError; the record then stays.
        """
        self._store.refresh()
        record = self._store.records.get(uid)
        if record is not None:
            self._release(record)
        elif names := [name for name, claim in self._store.damaged.items() if claim.uid == uid]:
            self._specs.remove(uid)
            self._store.discard(*names)
        return record is not None

    def restore(self, name: str, record: ClaimRecord) -> None:
        """Write the damaged record of file ``name`` again, and prepare the claim. Raises OSError and PluginError."""
        self._store.refresh()
        if name in self._store.damaged:
            self._record(record)
            self._prepare(record)

    def repair(
        self,
        ended: Mapping[str, ClaimRecord | None] = MappingProxyType({}),
        before: Callable[[], None] = lambda: None,
    ) -> Repairs:
        """Make devices and specs match the records; the next call retries what failed.

        ``before`` is called first. ``ended`` are claims that do not exist any more, by UID: those whose record still is
        this one are released. The first call of a process prepares every claim again. Raises OSError and PluginError if
        no claim can be repaired, because the records cannot be read, or another process serves the driver.
        """
        before()
        self._store.refresh()
        for content in self._store.sweep():
            self._specs.remove(content.claim.uid, content.cdi_directory)
        self._specs.sweep()
        problems: dict[str, Exception] = {}
        done: list[tuple[Repaired, Literal["ok", "failed"]]] = []
        for record in [*self._store.records.values()]:
            kind: Repaired | None = None
            try:
                kind = self._fault(record, ended)
                self._repair(record, kind)
            except (OSError, PluginError) as error:
                problems[record.uid] = error.with_traceback(None)  # which refers to ``problems``
            if kind is not None:
                done.append((kind, "failed" if record.uid in problems else "ok"))
        try:
            self._require_intact()
        except (OSError, PluginError) as error:
            problems[""] = error.with_traceback(None)
        return Repairs(problems, done)

    def _prepare(self, record: ClaimRecord) -> tuple[pb.Device, ...]:
        """Prepare the devices, which stay as they are if they are prepared, and write the spec."""
        edits: dict[str, ContainerEdits] = {}
        for request in record.requests:
            prepared = self._backend.prepare(self._inventory.found, request.ids, request.parameters)
            if len(prepared) != len(request.ids):
                raise BackendError(f"{len(request.ids)} devices were prepared, and {len(prepared)} results returned")
            edits.update(zip(request.ids, prepared, strict=True))
        devices = self._specs.write(record, edits)
        self._prepared.add(record.uid)
        return devices

    def _record(self, record: ClaimRecord) -> None:
        """Write the record of a claim."""
        self._store.write(record, sorted(self._places(record)), self._specs.directory)

    def _places(self, record: ClaimRecord) -> set[str]:
        return {place for device_id in record.ids for place in self._backend.places(device_id)}

    def _other(self, wanted: ClaimRecord) -> ClaimRecord | None:
        """Return another claim that has a device of ``wanted``, of this driver or another one.

        A claim of this driver may have it by another ID, if the devices were in other sets when it was prepared.
        """
        ids, places = frozenset(wanted.ids), self._places(wanted)
        for each in self._store.records.values():
            has_one = not (ids.isdisjoint(each.ids) and places.isdisjoint(self._store.content(each).places))
            if has_one and each.uid != wanted.uid:
                return each
        return next(iter(self._held(wanted.ids, self._store.others()).values()), None)

    def _held(self, ids: Collection[str], others: Others) -> dict[str, ClaimRecord]:
        """Return those of the devices ``ids`` that claims of other drivers have, with these claims."""
        claims = {place: content.claim for content in others.prepared for place in content.places}
        places = {place: device_id for device_id in ids for place in self._backend.places(device_id)} if claims else {}
        return {places[place]: claims[place] for place in places if place in claims}

    def _roll_back(self, record: ClaimRecord) -> None:
        try:
            self._release(record)
        except (OSError, PluginError) as error:
            fields = {"claim": record.full_name, "uid": record.uid, "error": str(error)}
            LOG.error("claim rollback failed, retrying", extra=fields)  # noqa: TRY400 - an expected error

    def _require_configured(self, record: ClaimRecord) -> None:
        """Raise FormerClaimError for a claim whose devices are now configured to be elsewhere.

        To prepare it again would give it other devices, and to release it would leave those that it has.
        """
        places = self._store.content(record).places
        if places and self._places(record).isdisjoint(places):
            raise FormerClaimError(
                f"its devices are {places[0]}, as configured when claim {record.label} was prepared: configure that "
                "again until its pod has ended"
            )

    def _release(self, record: ClaimRecord) -> None:
        self._require_configured(record)
        others = [other for other in self._store.records.values() if other.uid != record.uid]
        taken = {device_id for other in others for device_id in other.ids}
        taken |= self._held(record.ids, self._store.others()).keys()
        self._backend.unprepare([device_id for device_id in record.ids if device_id not in taken])
        self._specs.remove(record.uid)
        self._specs.remove(record.uid, self._store.content(record).cdi_directory)
        self._store.remove(record.uid)
        self._prepared.discard(record.uid)

    def _require_intact(self) -> None:
        """Raise ClaimRecordError for damaged records, which may be of any device."""
        if damaged := [*map(self._store.path, self._store.damaged), *self._store.others().damaged]:
            raise ClaimRecordError(
                f"the claim record {', '.join(damaged)} is damaged: no device is released and no further claim is "
                "prepared until the API server has shown the claim; if its pod has ended, remove the file"
            )

    def _fault(self, record: ClaimRecord, ended: Mapping[str, ClaimRecord | None]) -> Repaired | None:
        """Return what of a prepared claim is lost, or that the claim does not exist any more. Write a lost record."""
        if self._store.write_lost(record):
            return "record"
        self._require_configured(record)
        if ended.get(record.uid) == record:
            return "claim"
        if record.uid not in self._prepared:
            return None
        if not self._backend.is_prepared(self._inventory.found, record.ids):
            return "mount"
        return None if self._specs.is_intact(record.uid) else "spec"

    def _repair(self, record: ClaimRecord, kind: Repaired | None) -> None:
        fields = {"claim": record.full_name, "uid": record.uid, "device": ",".join(record.ids)}
        if kind == "claim":
            self._release(record)
            LOG.warning("claim does not exist any more, unprepared", extra=fields)
            return
        if kind == "record":
            LOG.warning("record of a claim lost, written again", extra=fields)
            self._require_configured(record)
        content = self._store.content(record)
        places = sorted({*content.places, *self._places(record)})
        if len(places) > len(content.places):  # a link leads elsewhere; containers may have what it led to
            self._store.write(record, places, content.cdi_directory)
        if kind is not None or record.uid not in self._prepared:
            self._prepare(record)
        if content.cdi_directory != self._specs.directory:
            self._leave(content.cdi_directory, record)
            self._store.write(record, places, self._specs.directory)
        if kind == "mount":
            LOG.warning("devices of a claim lost, prepared again", extra=fields)
        elif kind == "spec":
            fields = {"uid": record.uid, "path": self._specs.path(record.uid)}
            LOG.warning("CDI spec of a claim lost, written again", extra=fields)

    def _leave(self, former: str, record: ClaimRecord) -> None:
        """Remove the spec of a claim from a former CDI directory: it might have precedence for the runtime."""
        fields = {"claim": record.full_name, "uid": record.uid, "path": self._specs.path(record.uid, former)}
        if not os.path.isdir(former):
            LOG.warning("former CDI directory is not accessible, the spec of a claim stays there", extra=fields)
        elif not (os.path.exists(self._specs.directory) and os.path.samefile(former, self._specs.directory)):
            self._specs.remove(record.uid, former)
            LOG.info("CDI spec of a claim removed from the former directory", extra=fields)


class ClaimSpecs:
    """The CDI specs of one driver's claims. To be used in the worker thread, with the lock of the records."""

    def __init__(self, driver: str, directory: str) -> None:
        """``directory`` is a path of this process, created when it is needed."""
        self.directory = directory
        self._kind = claim_kind(driver)
        # As the CDI library names them (pkg/cdi/spec.go, GenerateTransientSpecName): <vendor>-<class>_<id>.
        self._stem = f"{self._kind.replace('/', '-')}_"
        self._written: dict[str, tuple[int, ...] | None] = {}
        """The identity of each file that this process has written, by the UID of the claim; None without a spec."""

    def path(self, uid: str, directory: str = "") -> str:
        """Return the path of the spec of a claim, in another ``directory`` if given."""
        return os.path.join(directory or self.directory, f"{self._stem}{uid}.json")

    def write(self, record: ClaimRecord, edits: Mapping[str, ContainerEdits]) -> tuple[pb.Device, ...]:
        """Write the spec of a claim, even if it has this content already, and return the devices for the kubelet.

        ``edits`` has the edits of each device by its ID. A device without edits has no CDI device, because no runtime
        accepts an empty one; the first device of a request may have the edits for all. The file is always replaced,
        because a runtime caches device numbers until it changes. Raises CdiError, and BackendError for edits that CDI
        does not support.
        """
        prepared, in_spec = [], []
        for request in record.requests:
            main_name = request.name.partition("/")[0]  # without the subrequest: containers refer to this name
            for device in request.devices:
                own = edits[device.id]
                if own.annotations:
                    raise BackendError(f"device {device.id}: annotations of a container are not possible for claims")
                cdi_names = [*own.cdi_devices]
                if own.devices or own.mounts or own.environment:
                    name = f"{record.uid}-{device.name}"
                    in_spec.append(CdiDevice(name, own))
                    cdi_names.insert(0, qualified_name(self._kind, name))
                prepared.append(
                    pb.Device(
                        request_names=[main_name],
                        pool_name=device.pool,
                        device_name=device.name,
                        cdi_device_ids=cdi_names,
                    )
                )
        self._written[record.uid] = self._replace(record.uid, in_spec) if in_spec else None
        return tuple(prepared)

    def remove(self, uid: str, directory: str = "") -> None:
        """Remove the spec of a claim, if there is one. Raises CdiError."""
        path = self.path(uid, directory)
        if not directory:
            self._written.pop(uid, None)
        with translate_errors(path):
            atomic_file.remove(path)

    def is_intact(self, uid: str) -> bool:
        """Return whether the spec of a claim is as this process has written it. Raises CdiError."""
        path, identity = self.path(uid), self._written.get(uid, ())
        with translate_errors(path), contextlib.suppress(FileNotFoundError):
            return identity is None or identity == atomic_file.identity(os.lstat(path))
        return False

    def sweep(self) -> None:
        """Remove the temporary files that killed processes left. Raises CdiError."""
        with translate_errors(self.directory):
            atomic_file.sweep(self.directory, rf"{re.escape(self._stem)}{UID.pattern}\.json", age=0)

    def _replace(self, uid: str, devices: Sequence[CdiDevice]) -> tuple[int, ...]:
        path = self.path(uid)
        with translate_errors(path):
            atomic_file.make_directory(self.directory)
            return atomic_file.identity(atomic_file.replace(path, encode(spec_of(self._kind, devices)), _MODE))
