"""The records of a driver's prepared claims: one file for each claim, in the driver's directory of the kubelet.

A record is written before the devices of its claim are prepared, and removed after they are released. So whoever reads
the directory knows which devices are not free, wherever a process was killed. A record of another boot counts for
nothing: mounts and processes are gone then, and the kubelet prepares each claim again. Records are synced to the disk
before they get their names, because an empty file after a power failure would not tell of which boot it is.

The name of a file has namespace and name of the claim, so that the API server can be asked about a damaged one.

A process holds a lock of the directory until it ends, so that it alone writes there: a file that is gone or changed was
lost, and is written again from memory. Another process of the driver waits, and is not registered meanwhile.
"""

import contextlib
import fcntl
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.errors import ClaimRecordError

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"

_MODE = 0o600
"""For root alone: parameters of claims may be confidential."""

_MAX_NAME_LENGTH = 240
"""Bytes of a file name (NAME_MAX in linux/limits.h), without what a temporary file adds."""

UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?")
"""UIDs of claims that can be part of file and device names."""

_FILE_NAME = re.compile(rf"claim_(?:([a-z0-9-]+)_([a-z0-9.-]+)_)?({UID.pattern})\.json")


class ClaimReference(NamedTuple):
    """A ResourceClaim as the kubelet names it; another claim may have the same namespace and name later."""

    namespace: str
    name: str
    uid: str

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"


class DeviceRecord(msgspec.Struct, frozen=True):
    """A device that is allocated to a claim."""

    id: str
    pool: str
    name: str
    """Name in the ResourceSlice."""


class RequestRecord(msgspec.Struct, frozen=True):
    """A request of a claim, with the devices that are allocated for it."""

    name: str
    """The name in the allocation: REQUEST, or REQUEST/SUBREQUEST for an alternative of a request."""
    devices: tuple[DeviceRecord, ...]
    parameters: tuple[ClaimParameters, ...] = ()
    """The strongest last."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs of the devices."""
        return tuple(device.id for device in self.devices)


class ClaimRecord(msgspec.Struct, frozen=True):
    """A claim that is prepared, or is to be. Immutable; may be read in any thread."""

    driver: str
    """The driver whose devices these are."""
    uid: str
    namespace: str
    name: str
    requests: tuple[RequestRecord, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs of all devices."""
        return tuple(device.id for device in self.devices)

    @property
    def devices(self) -> tuple[DeviceRecord, ...]:
        """All devices."""
        return tuple(device for request in self.requests for device in request.devices)

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"

    @property
    def label(self) -> str:
        """The claim as error messages name it."""
        return f"{self.full_name} (UID {self.uid})"


class Content(msgspec.Struct, frozen=True):
    """The content of the file of a record."""

    boot: str
    cdi_directory: str
    """Where the CDI spec of the claim is; a path of the process that has written the record."""
    places: tuple[str, ...]
    """The host's paths of the devices, see ``Backend.places``."""
    claim: ClaimRecord


class _File(NamedTuple):
    """The file of a record."""

    identity: tuple[int, ...] | None
    """What distinguishes it from one that replaces it; None if it is lost."""
    content: Content | None
    """None if it is damaged."""


class Others(NamedTuple):
    """The records of several drivers on this host."""

    prepared: Sequence[Content]
    """Those of this boot."""
    damaged: Sequence[str]
    """The paths of those that cannot be read."""


class RecordStore:
    """The records of one driver. To be used in the worker thread, except for ``records`` and ``damaged``."""

    def __init__(
        self, driver: str, directory: str, *, changed: Callable[[], None] = lambda: None, boot_id_file: str
    ) -> None:
        """``directory`` is the driver's own: a path of this process, created when it is needed.

        ``changed`` is called in the worker thread after each change of ``records`` or ``damaged``.
        """
        self.directory = directory
        self._driver = driver
        self._changed = changed
        self._boot_id_file = boot_id_file
        self._lock: int | None = None
        """The descriptor of the locked file; None before it is locked."""
        self.is_served_elsewhere = False
        """Whether another process has the lock. May be read in any thread."""
        self._files: dict[str, _File] = {}
        self.records: Mapping[str, ClaimRecord] = MappingProxyType({})
        """The prepared claims by UID, as they were last read or written; replaced by a single assignment."""
        self.damaged: Mapping[str, ClaimReference] = MappingProxyType({})
        """The claims whose records cannot be read, by file name, with an empty name where it is unknown; replaced by a
        single assignment."""

    @functools.cached_property
    def boot(self) -> str:
        """What distinguishes this boot of the host from others. Raises OSError."""
        return _read_boot(self._boot_id_file)

    def path(self, name: str) -> str:
        """Return the path of a file of this directory."""
        return os.path.join(self.directory, name)

    def refresh(self) -> None:
        """Lock the directory, unless it is locked, and read it. To be called before all else.

        A record that is gone or changed since it was read or written was lost: it counts, and is to be written again.
        Raises OSError, and ClaimRecordError, also if another process has the lock.
        """
        self._acquire()
        with self._translate_errors("read", ""):
            found = _read_directory(self.directory, self._files)
        for name, known in self._files.items():
            if known.content is not None and name not in self.damaged and found.get(name) is not known:
                found[name] = _File(None, known.content)
        self._set(found)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def write(self, record: ClaimRecord, places: Sequence[str], cdi_directory: str) -> None:
        """Write the record of a claim. Raises OSError and ClaimRecordError; the former record then stays."""
        content = Content(self.boot, cdi_directory, tuple(places), record)
        name = _file_name(record)
        with self._translate_errors("write", name):
            status = atomic_file.replace(self.path(name), msgspec.json.encode(content), _MODE, sync=True)
        self._set({**self._files, name: _File(atomic_file.identity(status), content)})

    def remove(self, uid: str) -> None:
        """Remove the record of a claim, damaged or not, if there is one. Raises ClaimRecordError."""
        self.discard(*[name for name in self._files if _reference(name).uid == uid])

    def discard(self, *names: str) -> None:
        """Remove the files of records. Raises ClaimRecordError."""
        for name in names:
            with self._translate_errors("remove", name):
                atomic_file.remove(self.path(name))
            self._set({other: file for other, file in self._files.items() if other != name})

    def content(self, record: ClaimRecord) -> Content:
        """Return the content of the file of a record of this store, as it was last read or written."""
        content = self._files[_file_name(record)].content
        assert content is not None  # noqa: S101 - a record that was read
        return content

    def write_lost(self, record: ClaimRecord) -> bool:
        """Write the file of a record again if it is gone or changed; return whether it was. Raises as ``write``."""
        if self._files[_file_name(record)].identity is not None:
            return False
        content = self.content(record)
        self.write(record, content.places, content.cdi_directory)
        return True

    def sweep(self) -> Sequence[Content]:
        """Remove records of other boots, and return them; also temporary files that killed processes left.

        Raises OSError and ClaimRecordError.
        """
        atomic_file.sweep(self.directory, _FILE_NAME.pattern, age=0)
        former = {name: it.content for name, it in self._files.items() if it.content and it.content.boot != self.boot}
        self.discard(*former)
        return [*former.values()]

    def others(self) -> Others:
        """Return the claims that other drivers have prepared, as their directories have them now.

        They need not run: the driver of this resource may have had another name. Raises OSError and ClaimRecordError.
        """
        root, own = os.path.split(self.directory)
        with self._translate_errors("read", ""):
            return _others(root, own, self.boot)

    def _set(self, files: dict[str, _File]) -> None:
        self._files = files
        records, damaged = {}, {}
        for name, file in files.items():
            content = file.content
            if content is None or (content.claim.driver, _file_name(content.claim)) != (self._driver, name):
                damaged[name] = _reference(name)
            elif content.boot == self.boot:
                records[content.claim.uid] = content.claim
        if (records, damaged) != (self.records, self.damaged):
            self.records, self.damaged = MappingProxyType(records), MappingProxyType(damaged)
            self._changed()

    def _acquire(self) -> None:
        """Lock the directory for this process. The file may have been removed since. Raises ClaimRecordError."""
        path = self.path("lock")
        with self._translate_errors("lock", "lock"):
            with contextlib.suppress(FileNotFoundError):
                if self._lock is not None and os.path.samestat(os.stat(path), os.fstat(self._lock)):
                    return
            os.makedirs(os.path.dirname(self.directory), exist_ok=True)
            atomic_file.make_directory(self.directory, 0o750)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                self.is_served_elsewhere = isinstance(error, BlockingIOError)
                if self.is_served_elsewhere:
                    raise ClaimRecordError(f"another process serves {self._driver}: it has locked {path}") from None
                raise
        self.close()
        self._lock, self.is_served_elsewhere = descriptor, False

    @contextlib.contextmanager
    def _translate_errors(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = error.filename if name == "" and error.filename else self.path(name).rstrip("/")
            raise ClaimRecordError(f"cannot {action} {path}: {error.strerror}") from error


def claims_on_host(root: str) -> Others:
    """Return the claims that any driver has prepared; ``root`` has the drivers' directories. Raises OSError."""
    return _others(root, "", _read_boot(BOOT_ID_FILE))


def _others(root: str, own: str, boot: str) -> Others:
    """Return the records in the directories of all drivers but the ``own`` one. Raises OSError."""
    directories = []
    with contextlib.suppress(FileNotFoundError), os.scandir(root) as entries:
        directories = [each.path for each in entries if each.is_dir(follow_symlinks=False) and each.name != own]
    found = [
        (f"{each}/{name}", file.content) for each in directories for name, file in _read_directory(each, {}).items()
    ]
    return Others(
        [content for _, content in found if content is not None and content.boot == boot],
        [path for path, content in found if content is None],
    )


def _read_boot(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _file_name(record: ClaimRecord) -> str:
    """Return the name of the file of a record: without namespace and name of the claim if it would be too long."""
    name = f"claim_{record.namespace}_{record.name}_{record.uid}.json"
    return name if len(name) <= _MAX_NAME_LENGTH and _FILE_NAME.fullmatch(name) else f"claim_{record.uid}.json"


def _reference(name: str) -> ClaimReference:
    """Return the claim that a file is named after; namespace and name are empty if it has none."""
    match = _FILE_NAME.fullmatch(name)
    assert match is not None  # noqa: S101 - a name of ``_read_directory``
    return ClaimReference(match[1] or "", match[2] or "", match[3])


def _read_directory(directory: str, known: Mapping[str, _File]) -> dict[str, _File]:
    """Return the files of records in a directory by name; ``known`` ones are not read again. Raises OSError."""
    found: dict[str, _File] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if _FILE_NAME.fullmatch(entry.name) is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                identity = atomic_file.identity(entry.stat(follow_symlinks=False))
                file = known.get(entry.name)
                if file is None or file.identity != identity:
                    is_file = entry.is_file(follow_symlinks=False)  # opening a FIFO would hang
                    file = _File(identity, _read(entry.path) if is_file else None)
                found[entry.name] = file
    return found


def _read(path: str) -> Content | None:
    """Return the content of the file of a record; None if it is damaged. Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        return msgspec.json.decode(data, type=Content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
