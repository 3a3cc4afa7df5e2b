"""Objects as the API server stores them in etcd, by etcd's JSON gateway: reading one, writing copies of it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, TypeVar

from tests.e2e.cluster.control_plane import etcd
from tests.e2e.fleet import objects_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    M = TypeVar("M", bound="Message")

_MAGIC: Final = b"k8s\0"
_BATCH: Final = 64
"""Objects of one transaction; etcd accepts 1.5 MiB and 128 operations."""


def read(plural: str, namespace: str, name: str, kind: type[M]) -> tuple[objects_pb2.Envelope, M]:
    """Return an object as etcd has it; unknown fields are kept."""
    (pair,) = etcd("range", {"key": _key(plural, namespace, name)})["kvs"]
    envelope = objects_pb2.Envelope.FromString(base64.b64decode(pair["value"])[len(_MAGIC) :])
    return envelope, kind.FromString(envelope.raw)


def put(
    plural: str, envelope: objects_pb2.Envelope, item: objects_pb2.Pod | objects_pb2.ResourceClaim
) -> dict[str, str]:
    """Return the request that writes an object, for :func:`write`."""
    own = objects_pb2.Envelope()
    own.CopyFrom(envelope)
    own.raw = item.SerializeToString()
    key = _key(plural, item.metadata.namespace, item.metadata.name)
    return {"key": key, "value": _text(_MAGIC + own.SerializeToString())}


def write(puts: list[dict[str, str]]) -> None:
    """Write objects, several in each transaction."""
    for start in range(0, len(puts), _BATCH):
        batch = puts[start : start + _BATCH]
        etcd("txn", {"success": [{"requestPut": put} for put in batch]})


def _key(plural: str, namespace: str, name: str) -> str:
    return _text(f"/registry/{plural}/{namespace}/{name}".encode())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
