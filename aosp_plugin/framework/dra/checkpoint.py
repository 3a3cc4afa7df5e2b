"""The checkpoint of a driver: which claims it has prepared, in a file that outlives the process.

The file is JSON: the version of its format, the SHA-256 of ``data`` as it is written there, and ``data`` with the boot
ID of the host and the claims. After a reboot, mounts and processes are gone, and the kubelet prepares each claim again:
records of another boot are therefore not used. For the same reason the file is not synced to the disk, which would take
most of the time of a preparation: the host has to crash to lose what a process has written.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.dra.records import ClaimRecord  # noqa: TC001 - msgspec evaluates annotations
from aosp_plugin.framework.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG = logging.getLogger(__name__)

FILE_NAME = "checkpoint.json"
REJECTED_SUFFIX = ".rejected"
FORMAT = 1
"""Version of the format. A version with other fields that an older program could misread gets the next number."""

_MODE = 0o600  # parameters of claims may be confidential
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_CLAIMS: Mapping[str, ClaimRecord] = MappingProxyType({})

Source = Literal["file", "missing", "rejected", "other boot"]


class Loaded(NamedTuple):
    """The claims of this boot according to the checkpoint."""

    claims: Mapping[str, ClaimRecord]
    """By UID; empty unless ``source`` is file."""
    source: Source


class _Data(msgspec.Struct):
    boot: str
    claims: list[ClaimRecord]


class _Envelope(msgspec.Struct):
    format: int
    checksum: str
    data: msgspec.Raw


class _Version(msgspec.Struct):
    format: int


class Checkpoint:
    """The checkpoint file. To be used in the worker thread, under the ``StateLock`` of its directory."""

    def __init__(self, directory: str, boot: str) -> None:
        """``directory`` exists whenever the lock is held; ``boot`` is the boot ID of the host."""
        self._boot = boot
        self._directory = directory
        self.path = os.path.join(directory, FILE_NAME)
        self._content: bytes | None = None
        self._claims = _NO_CLAIMS

    def load(self) -> Loaded:
        """Read the file. One that cannot be used is moved aside, with the suffix ``.rejected``.

        One that a crash of the host has left without content counts as missing.
        Raises CheckpointError. The content is compared, and not the status of the file: a file that replaces it may
        have the same inode, size and time.
        """
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return Loaded(_NO_CLAIMS, "missing")
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoint {self.path}: {error.strerror}") from error
        if content == self._content:
            return Loaded(self._claims, "file")
        if not content.strip(b"\0"):
            return Loaded(_NO_CLAIMS, "missing")
        problem, data = _decode(content)
        if data is None:
            self._move_aside(problem)
            return Loaded(_NO_CLAIMS, "rejected")
        if data.boot != self._boot:
            return Loaded(_NO_CLAIMS, "other boot")
        self._set(content, {claim.uid: claim for claim in data.claims})
        return Loaded(self._claims, "file")

    def save(self, claims: Mapping[str, ClaimRecord]) -> None:
        """Replace the file. Raises CheckpointError; the previous file is then complete.

        A shorter content, for which the file system has no space, overwrites the file: a full disk must not keep pods
        from ending. If the process ends meanwhile, the claims are recovered from their specs.
        """
        content = _encode(_Data(self._boot, list(claims.values())))
        try:
            try:
                atomic_file.replace(self.path, content, _MODE)
            except OSError as error:
                if error.errno not in _NO_SPACE or len(content) > len(self._content or b""):
                    raise
                self._overwrite(content)
        except OSError as error:
            raise CheckpointError(
                f"cannot write the checkpoint {self.path}: {error.strerror}; its file system must be writable and "
                "have free space"
            ) from error
        self._set(content, claims)

    def sweep(self) -> None:
        """Remove the temporary files that killed processes left, while the lock is held. Raises OSError."""
        atomic_file.sweep(self._directory, r"checkpoint\.json", age=0)

    def _set(self, content: bytes, claims: Mapping[str, ClaimRecord]) -> None:
        self._content = content
        self._claims = MappingProxyType(dict(claims))

    def _overwrite(self, content: bytes) -> None:
        with open(self.path, "r+b") as file:
            file.write(content)
            file.truncate()

    def _move_aside(self, problem: str) -> None:
        rejected = self.path + REJECTED_SUFFIX
        try:
            os.rename(self.path, rejected)
        except OSError as error:
            raise CheckpointError(f"cannot rename the checkpoint {self.path}: {error.strerror}") from error
        LOG.error("checkpoint of the claims rejected, renamed", extra={"path": rejected, "error": problem})


def _encode(data: _Data) -> bytes:
    raw = msgspec.json.encode(data)
    return msgspec.json.encode(_Envelope(FORMAT, hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw)))


def _decode(content: bytes) -> tuple[str, _Data | None]:
    """Return the data, or why the content cannot be used."""
    try:
        version = msgspec.json.decode(content, type=_Version).format
        if version != FORMAT:
            return f"its format is {version}, and this program reads {FORMAT}", None
        envelope = msgspec.json.decode(content, type=_Envelope)
        if hashlib.sha256(bytes(envelope.data)).hexdigest() != envelope.checksum:
            return "its checksum is wrong", None
        return "", msgspec.json.decode(envelope.data, type=_Data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"it cannot be decoded: {error}", None
