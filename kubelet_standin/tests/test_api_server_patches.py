"""Patches that the stand-in API server applies, and those that it refuses."""

import json
from typing import Any

import pytest

from kubelet_standin.apiserver.patches import JSON_PATCH, MERGE_PATCH, apply
from kubelet_standin.apiserver.statuses import StatusError

OLD = {"metadata": {"name": "a", "labels": {"b/c": "d"}}, "spec": {"taints": [1, 2]}}
TAINTS = "/spec/taints"


@pytest.mark.parametrize(
    ("operation", "taints"),
    [
        ({"op": "add", "path": f"{TAINTS}/0", "value": 0}, [0, 1, 2]),
        ({"op": "add", "path": f"{TAINTS}/-", "value": 3}, [1, 2, 3]),
        ({"op": "add", "path": TAINTS, "value": []}, []),
        ({"op": "replace", "path": f"{TAINTS}/1", "value": 3}, [1, 3]),
        ({"op": "test", "path": "/metadata/labels/b~1c", "value": "d"}, [1, 2]),
        ({"op": "remove", "path": f"{TAINTS}/-1"}, None),
        ({"op": "replace", "path": "/spec/none", "value": 1}, None),
        ({"op": "add", "path": f"{TAINTS}/3", "value": 1}, None),
        ({"op": "add", "path": "/none/a", "value": 1}, None),
        ({"op": "add", "path": "/spec/a"}, None),
        ({"op": "move", "path": f"{TAINTS}/0", "from": f"{TAINTS}/1"}, None),
    ],
)
def test_an_operation_changes_a_copy_or_is_refused(operation: dict[str, Any], taints: list[int] | None) -> None:
    body = json.dumps([operation]).encode()
    if taints is None:
        with pytest.raises(StatusError, match="422 Invalid"):
            apply(JSON_PATCH, body, OLD)
    else:
        assert apply(JSON_PATCH, body, OLD)["spec"]["taints"] == taints
    assert OLD["spec"] == {"taints": [1, 2]}


def test_a_merge_patch_replaces_and_removes() -> None:
    patch = {"metadata": {"labels": {"b/c": None, "e": "f"}}, "spec": {"taints": [3]}, "new": {"a": 1}}
    expected = {"metadata": {"name": "a", "labels": {"e": "f"}}, "spec": {"taints": [3]}, "new": {"a": 1}}
    assert apply(MERGE_PATCH, json.dumps(patch).encode(), OLD) == expected


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [("application/json", b"{}", 415), (JSON_PATCH, b"{}", 400), (MERGE_PATCH, b"[]", 400), (JSON_PATCH, b"[", 400)],
)
def test_a_body_that_is_no_patch_is_refused(content_type: str, body: bytes, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        apply(content_type, body, OLD)
    assert caught.value.code == code
