"""Patches that the stand-in API server applies, and those that it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kubelet_standin.apiserver.patches import JSON_PATCH, MERGE_PATCH, apply
from kubelet_standin.apiserver.statuses import StatusError

OLD = {"metadata": {"name": "a", "labels": {"b/c": "d"}}, "spec": {"taints": [1, 2]}}


def patched(patch: Any, content_type: str = JSON_PATCH) -> dict[str, Any]:
    return apply(content_type, json.dumps(patch).encode(), OLD)


@pytest.mark.parametrize(
    ("patch", "taints"),
    [
        ([{"op": "add", "path": "/spec/taints/0", "value": 0}], [0, 1, 2]),
        ([{"op": "add", "path": "/spec/taints/-", "value": 3}], [1, 2, 3]),
        ([{"op": "add", "path": "/spec/taints", "value": []}], []),
        ([{"op": "replace", "path": "/spec/taints/1", "value": 3}], [1, 3]),
        (
            [{"op": "test", "path": "/metadata/labels/b~1c", "value": "d"}, {"op": "remove", "path": "/spec/taints/0"}],
            [2],
        ),
    ],
)
def test_operations_are_done_in_their_order(patch: list[dict[str, Any]], taints: list[int]) -> None:
    assert patched(patch)["spec"]["taints"] == taints
    assert OLD["spec"] == {"taints": [1, 2]}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/spec/taints/0", "value": 2},
        {"op": "remove", "path": "/spec/taints/2"},
        {"op": "remove", "path": "/spec/taints/-1"},
        {"op": "replace", "path": "/spec/none", "value": 1},
        {"op": "add", "path": "/spec/taints/3", "value": 1},
        {"op": "add", "path": "/none/a", "value": 1},
        {"op": "add", "path": "/spec/a"},
        {"op": "move", "path": "/spec/taints/0", "from": "/spec/taints/1"},
    ],
)
def test_an_operation_that_does_not_apply_is_refused(operation: dict[str, Any]) -> None:
    with pytest.raises(StatusError, match="422 Invalid"):
        patched([operation])


def test_a_merge_patch_replaces_and_removes() -> None:
    new = patched(
        {"metadata": {"labels": {"b/c": None, "e": "f"}}, "spec": {"taints": [3]}, "new": {"a": 1}}, MERGE_PATCH
    )
    assert new == {"metadata": {"name": "a", "labels": {"e": "f"}}, "spec": {"taints": [3]}, "new": {"a": 1}}


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [("application/json", b"{}", 415), (JSON_PATCH, b"{}", 400), (MERGE_PATCH, b"[]", 400), (JSON_PATCH, b"[", 400)],
)
def test_a_body_that_is_no_patch_is_refused(content_type: str, body: bytes, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        apply(content_type, body, OLD)
    assert caught.value.code == code
