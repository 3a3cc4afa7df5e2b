"""Objects as the API server stores them in etcd, by etcd's JSON gateway: reading one, writing copies of it."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.e2e.cluster.control_plane import ETCD
from tests.e2e.fleet import objects_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

    M = TypeVar("M", bound="Message")

_MAGIC: Final = b"k8s\0"
_BATCH: Final = 64
"""Objects of one transaction; etcd accepts 1.5 MiB and 128 operations."""


def read(plural: str, namespace: str, name: str, kind: type[M]) -> tuple[objects_pb2.Envelope, M]:
    """Return an object as etcd has it; unknown fields are kept."""
    (pair,) = _etcd("range", {"key": _key(plural, namespace, name)})["kvs"]
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
    for batch in _batches(puts):
        _etcd("txn", {"success": [{"requestPut": put} for put in batch]})


def delete(plural: str, namespace: str, name: str) -> None:
    """Delete an object, without the API server's finalizers."""
    _etcd("deleterange", {"key": _key(plural, namespace, name)})


def _batches(puts: list[dict[str, str]]) -> Iterable[list[dict[str, str]]]:
    return (puts[start : start + _BATCH] for start in range(0, len(puts), _BATCH))


def _key(plural: str, namespace: str, name: str) -> str:
    return _text(f"/registry/{plural}/{namespace}/{name}".encode())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _etcd(call: str, body: dict[str, Any]) -> dict[str, Any]:
    """Call etcd by its JSON gateway."""
    request = urllib.request.Request(f"{ETCD}/v3/kv/{call}", json.dumps(body).encode())  # noqa: S310 - of this sandbox
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - of this sandbox
        result: dict[str, Any] = json.load(answer)
        return result
