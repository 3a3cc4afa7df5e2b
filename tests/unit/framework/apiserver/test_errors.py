"""The errors of requests to the API server, and what their messages contain."""

import json

from aosp_plugin.framework.apiserver.protocol import (
    MAX_TEXT,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    InvalidObjectError,
    NotFoundError,
    Request,
    from_answer,
)

REQUEST = Request("get", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/a")


def status(code: int, **fields: object) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", "code": code, **fields}).encode()


def test_each_status_has_its_error() -> None:
    for code, kind, transient in (
        (401, ApiError, True),
        (404, NotFoundError, False),
        (409, ConflictError, False),
        (410, ApiError, False),
        (422, InvalidObjectError, False),
        (429, ApiError, True),
        (302, ApiUnavailableError, True),
        (500, ApiUnavailableError, True),
    ):
        error = from_answer(REQUEST, code, status(code, reason="Reason", message="text"))
        assert (type(error), error.transient) == (kind, transient)
        assert (error.status, error.reason) == (code, "Reason")
        assert str(error).startswith(f"API server: {REQUEST}: {code} Reason: text")


def test_a_forbidden_request_names_the_rule_that_is_missing() -> None:
    error = from_answer(REQUEST, 403, status(403, reason="Forbidden", message="no"))
    assert str(error).endswith(
        '403 Forbidden: no (the service account requires the verb get on resourceclaims of API group "resource.k8s.io" '
        "in namespace default)"
    )
    error = from_answer(Request("get", "/api/v1/nodes/a"), 403, b"")
    assert str(error).endswith("(the service account requires the verb get on nodes of the core API group)")


def test_a_request_that_a_policy_denies_names_no_rule() -> None:
    message = (
        "nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: not its own node"
    )
    error = from_answer(Request("patch", "/api/v1/nodes/a"), 403, status(403, reason="Forbidden", message=message))
    assert str(error).endswith("denied request: not its own node")


def test_any_body_makes_a_short_line() -> None:
    for body in (
        b'{"kind":"Status","message":7}',
        b"\xff\x00\x1b[31m\r\n\r\nHTTP/1.1 200",
        b"x" * 1_000_000,
        b'{"kind":"Status","message":"\\u0000\\u202e\\n\\na"}',
    ):
        text = str(from_answer(REQUEST, 500, body))
        assert text.isprintable()
        assert len(text) < MAX_TEXT + 200


def test_the_pause_that_a_server_asks_for_is_bounded() -> None:
    dated = "Wed, 21 Oct 2099 07:28:00 GMT"
    for header, seconds in (("7", 7.0), ("", None), ("soon", None), ("-1", None), ("9" * 400, 300.0), (dated, None)):
        assert from_answer(REQUEST, 429, status(429), header).retry_after == seconds
