"""Patches of the stand-in API server: JSON patches (RFC 6902) and merge patches (RFC 7386)."""

from __future__ import annotations

import copy
import json
from typing import Any, Final

from kubelet_standin.apiserver import statuses
from kubelet_standin.apiserver.statuses import StatusError

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"

Object = dict[str, Any]


def apply(content_type: str, body: bytes, old: Object) -> Object:
    """Return the patched object. Raises StatusError: 415, 400 for a body that is no patch, 422 if it does not apply."""
    if content_type not in {JSON_PATCH, MERGE_PATCH}:
        raise StatusError(415, "UnsupportedMediaType", f"{content_type} is not {JSON_PATCH} or {MERGE_PATCH}")
    try:
        patch = json.loads(body)
    except ValueError as error:
        raise statuses.bad_request(f"error decoding patch: {error}") from error
    if not isinstance(patch, list if content_type == JSON_PATCH else dict):
        raise statuses.bad_request(f"error decoding patch: json: cannot unmarshal {type(patch).__name__}")
    new = _merged(old, patch) if content_type == MERGE_PATCH else copy.deepcopy(old)
    if content_type == JSON_PATCH:
        for operation in patch:
            _do(new, operation)
    return new


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = _merged(new.get(name), value)
    return new


def _do(document: Object, operation: dict[str, Any]) -> None:
    """Do an operation; those of the plugin and of its tests, which are no moves and copies."""
    kind, path = operation.get("op"), operation.get("path", "")
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]] or [""]
    try:
        holder: Any = document
        for part in parents:
            holder = holder[_key(holder, part)]
        if kind == "add":
            _add(holder, last, operation["value"])
            return
        key = _key(holder, last)
        found = holder[key]
        if kind == "test" and found != operation["value"]:
            raise statuses.unprocessable(f"testing value {path} failed: test failed")
        if kind == "replace":
            holder[key] = operation["value"]
        elif kind == "remove":
            del holder[key]
        elif kind != "test":
            raise statuses.unprocessable(f"Unexpected kind: {kind}")
    except (LookupError, TypeError, ValueError) as error:
        raise statuses.unprocessable(f"{kind} operation does not apply: doc is missing path: {path}") from error


def _add(holder: Any, last: str, value: Any) -> None:
    if isinstance(holder, list):
        holder.insert(len(holder) if last == "-" else _index(holder, last, len(holder)), value)
    else:
        holder[last] = value


def _key(holder: Any, part: str) -> int | str:
    return _index(holder, part, len(holder) - 1) if isinstance(holder, list) else part


def _index(holder: list[Any], part: str, last: int) -> int:
    index = int(part)
    if not 0 <= index <= last:
        raise IndexError(f"{part} is no index of a list of {len(holder)}")
    return index
