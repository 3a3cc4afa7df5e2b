"""The CDI specs of prepared claims: one file per claim, with one CDI device per allocated device.

The kubelet passes the names of the CDI devices to the container runtime, for each container those of its requests. The
names have the UID of the claim, because a runtime may remember a name's earlier meaning.

Each spec carries the record of its claim in an annotation: a lost checkpoint is recovered from the specs.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.cdi.spec import CdiDevice, encode, qualified_name, spec_of
from aosp_plugin.framework.cdi.spec_file import translate_errors
from aosp_plugin.framework.dra.interfaces import PreparedDevice
from aosp_plugin.framework.dra.names import claim_kind
from aosp_plugin.framework.dra.records import ClaimRecord  # noqa: TC001 - msgspec evaluates annotations
from aosp_plugin.framework.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.framework.edits import ContainerEdits

MAX_ANNOTATION_BYTES = 192 * 1024
"""The longest record that a spec carries; a runtime rejects a spec with more than 256 KiB of annotations. Only
parameters of several requests, each at the limit of the API server, get that long."""

_MODE = 0o600
"""For the container runtime, which runs as root: parameters of claims may be confidential."""

_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?")


def uid_problem(uid: str) -> str | None:
    """Return why a UID cannot be part of file and device names; None if it can."""
    return None if _UID.fullmatch(uid) else f"the UID {uid!r} has other characters than letters, digits and dashes"


class Described(NamedTuple):
    """A prepared claim as kubelet and container runtime get it."""

    devices: tuple[PreparedDevice, ...]
    spec: bytes | None
    """Content of the spec; None if the claim gives a container nothing that CDI brings."""


class _Carried(msgspec.Struct):
    boot: str
    claim: ClaimRecord


class _Spec(msgspec.Struct):
    annotations: dict[str, str] = {}


class ClaimSpecs:
    """The spec files of one driver. To be used in the worker thread, under its ``StateLock``."""

    def __init__(self, directory: str, driver: str, boot: str) -> None:
        """``directory`` is a path of this process, and may not exist yet; ``boot`` is the boot ID of the host."""
        self.directory = directory
        self._kind = claim_kind(driver)
        self._annotation = f"{driver}/claim"
        self._boot = boot
        # As the CDI library names them (pkg/cdi/spec.go, GenerateTransientSpecName): <vendor>-<class>_<id>.
        self._stem = f"{self._kind.replace('/', '-')}_"
        self._file_name = re.compile(rf"{re.escape(self._stem)}({_UID.pattern})\.json")

    def path(self, uid: str) -> str:
        """Return the path of the spec of a claim."""
        return os.path.join(self.directory, f"{self._stem}{uid}.json")

    def describe(self, record: ClaimRecord, edits: Mapping[str, ContainerEdits]) -> Described:
        """Return the devices and the spec of a claim; ``edits`` are those of each device, by its ID.

        A device without edits has no CDI device, because no runtime accepts that; the first device of a request may
        bring what all of them need. Pure. Raises BackendError for edits that CDI does not have.
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
        if not in_spec:
            return Described(tuple(prepared), None)
        return Described(tuple(prepared), encode(spec_of(self._kind, in_spec, self._annotations(record))))

    def write(self, uid: str, content: bytes | None) -> None:
        """Write the spec of a claim, even if the file has this content; None removes it. Raises CdiError.

        The runtime caches device numbers until the file changes, so that it is replaced also after a repair.
        """
        if content is None:
            self.remove(uid)
            return
        path = self.path(uid)
        with translate_errors(path):
            atomic_file.make_directory(self.directory)
            atomic_file.replace(path, content, _MODE)

    def sweep(self) -> None:
        """Remove the temporary files that killed processes left, while the lock is held. Raises OSError."""
        atomic_file.sweep(self.directory, self._file_name.pattern, age=0)

    def read(self, uid: str) -> bytes | None:
        """Return the content of the spec of a claim; None if it does not exist. Raises CdiError."""
        path = self.path(uid)
        with translate_errors(path):
            try:
                with open(path, "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def exists(self, uid: str) -> bool:
        """Return whether a claim has a spec."""
        return os.path.lexists(self.path(uid))

    def remove(self, uid: str) -> bool:
        """Remove the spec of a claim; return whether it existed. Raises CdiError."""
        path = self.path(uid)
        with translate_errors(path):
            return atomic_file.remove(path)

    def uids(self) -> Sequence[str]:
        """Return the UIDs of all claims with a spec. Raises CdiError."""
        with translate_errors(self.directory):
            try:
                entries = sorted(os.listdir(self.directory))
            except FileNotFoundError:
                return []
        return [match[1] for match in map(self._file_name.fullmatch, entries) if match is not None]

    def carried(self, uid: str) -> ClaimRecord | None:
        """Return the record that the spec of a claim carries, if it is of this boot. Raises CdiError."""
        content = self.read(uid)
        try:
            annotation = msgspec.json.decode(content or b"", type=_Spec).annotations[self._annotation]
            carried = msgspec.json.decode(annotation, type=_Carried)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
            return None
        return carried.claim if carried.boot == self._boot and carried.claim.uid == uid else None

    def _annotations(self, record: ClaimRecord) -> Mapping[str, str]:
        """Return the annotation, in ASCII: a parameter may have characters that are not allowed in YAML."""
        value = json.dumps(msgspec.to_builtins(_Carried(self._boot, record.with_state("completed"))))
        return {self._annotation: value} if len(value) <= MAX_ANNOTATION_BYTES else {}
