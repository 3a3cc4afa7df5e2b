"""The checkpoint of earlier versions, which had the prepared claims in a file beside their CDI specs.

The file is JSON: the version of its format, the SHA-256 of ``data`` as it is written there, and ``data`` with the boot
ID of the host and the claims. It is read once, at the start of a process. Claims that end are removed from it, and the
file when each claim has a spec that records it.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Literal

import msgspec

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.dra.claim_records import ClaimRecord
from aosp_plugin.framework.errors import ClaimRecordError

LOG = logging.getLogger(__name__)

FILE_NAME = "checkpoint.json"
REJECTED_SUFFIX = ".rejected"
_MODE = 0o600


class _Data(msgspec.Struct):
    boot: str
    claims: list[ClaimRecord]


class _Envelope(msgspec.Struct):
    format: Literal[1]
    checksum: str
    data: msgspec.Raw


def read_checkpoint(directory: str, boot: str) -> Sequence[ClaimRecord]:
    """Return the claims that were prepared in this ``boot``; none if there is no checkpoint.

    A file that cannot be used is moved aside, with the suffix ``.rejected``. Raises ClaimRecordError.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        with open(path, "rb") as file:
            content = file.read()
        if not content.strip(b"\0"):  # a crash of the host has left it
            return ()
        try:
            data = _decode(content)
        except (ValueError, RecursionError) as error:  # includes those of msgspec
            os.rename(path, path + REJECTED_SUFFIX)
            fields = {"path": path + REJECTED_SUFFIX, "error": str(error)}
            LOG.error("checkpoint of the claims rejected, renamed", extra=fields)  # noqa: TRY400 - an expected error
            return ()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ClaimRecordError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    return [claim for claim in data.claims if data.boot == boot and claim.state == "completed"]


def remove_checkpoint(directory: str) -> None:
    """Remove the checkpoint, if there is one. Raises OSError."""
    path = os.path.join(directory, FILE_NAME)
    if atomic_file.remove(path):
        LOG.info("checkpoint of an earlier version converted", extra={"path": path})


def forget_claim(directory: str, boot: str, uid: str) -> None:
    """Remove a claim that has ended, so that no later process adopts it. Raises OSError and ClaimRecordError."""
    claims = read_checkpoint(directory, boot)
    left = [claim for claim in claims if claim.uid != uid]
    if len(left) < len(claims):
        data = msgspec.json.encode(_Data(boot, left))
        envelope = _Envelope(1, hashlib.sha256(data).hexdigest(), msgspec.Raw(data))
        atomic_file.replace(os.path.join(directory, FILE_NAME), msgspec.json.encode(envelope), _MODE)


def checkpoint_exists(directory: str) -> bool:
    """Return whether there is a checkpoint: an earlier version runs, or was the last one that did."""
    return os.path.lexists(os.path.join(directory, FILE_NAME))


def _decode(content: bytes) -> _Data:
    """Return the data. Raises ValueError and RecursionError."""
    envelope = msgspec.json.decode(content, type=_Envelope)
    if hashlib.sha256(bytes(envelope.data)).hexdigest() != envelope.checksum:
        raise ValueError("its checksum is wrong")
    return msgspec.json.decode(envelope.data, type=_Data)
