"""What the API server answers, decoded: any bytes are an object, or an ApiError."""

import json
from typing import Any

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.protocol import ApiError, ApiUnavailableError, Request

REQUEST = Request("watch", "/api/v1/nodes")
NODE = {"kind": "Node", "metadata": {"resourceVersion": "7"}}


def event(kind: str, content: object) -> bytes:
    return json.dumps({"type": kind, "object": content}).encode()


def test_an_event_has_type_object_and_version() -> None:
    for kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        found = protocol.decode_event(REQUEST, event(kind, NODE))
        assert (found.type, found.object, found.resource_version) == (kind, NODE, "7")
    no_version = {"kind": "Node", "metadata": {"resourceVersion": ""}}
    for line in (b"", b"{}", event("CHANGED", NODE), event("ADDED", {"kind": "Node"}), event("ADDED", no_version)):
        with pytest.raises(ApiUnavailableError):
            protocol.decode_event(REQUEST, line)


def test_an_error_event_is_raised() -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (3)"}
    with pytest.raises(ApiError, match=r"410 Expired: too old resource version: 1 \(3\)"):
        protocol.decode_event(REQUEST, event("ERROR", status))
    with pytest.raises(ApiUnavailableError):
        protocol.decode_event(REQUEST, event("ERROR", {"kind": "Status"}))


def test_an_object_or_list_of_another_kind_is_refused() -> None:
    for kind in ("", "Status", "NodeList"):
        with pytest.raises(ApiUnavailableError, match="not an object but of the kind"):
            protocol.decode_object(REQUEST, json.dumps({**NODE, "kind": kind}).encode(), dict[str, Any])
    for body in (b'{"kind":"NodeList","metadata":{}}', json.dumps(NODE).encode()):
        with pytest.raises(ApiUnavailableError):
            protocol.decode_list(REQUEST, body)
    assert protocol.decode_list(REQUEST, b'{"kind":"NodeList","metadata":{"resourceVersion":"1"}}') == []
