"""What the API server answers: objects, lists, events and errors, decoded and checked. All functions are pure."""

from __future__ import annotations

import email.utils
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import msgspec

from aosp_plugin.framework.apiserver.errors import (
    ApiError,
    ApiUnavailableError,
    Request,
    Status,
    UnauthorizedError,
    from_answer,
    from_status,
    one_line,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


class WatchEvent(NamedTuple):
    """A change of a collection."""

    type: EventType
    object: dict[str, Any]
    """The object after the change, and before its deletion; of a bookmark, only metadata.resourceVersion is set."""

    @property
    def resource_version(self) -> str:
        """Where a watch of all later changes begins."""
        return cast("str", self.object["metadata"]["resourceVersion"])


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion")
    next: str | None = msgspec.field(name="continue", default=None)


class Page(msgspec.Struct):
    """A page of a list."""

    kind: str
    metadata: _ListMeta
    items: list[dict[str, Any]] | None = None


class _ObjectMeta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _Head(msgspec.Struct):
    """What all objects have in common."""

    kind: str
    metadata: _ObjectMeta = msgspec.field(default_factory=_ObjectMeta)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


def decode_object(request: Request, body: bytes, expected: type[T]) -> T:
    """Return an object as ``expected``. Raises ApiUnavailableError if it is none, or is invalid."""
    head = _decode(request, body, _Head)
    if head.kind in {"", "Status"} or head.kind.endswith("List"):
        raise ApiUnavailableError(request, f"the answer is not an object but of the kind {one_line(head.kind)!r}")
    return _decode(request, body, expected)


def decode_page(request: Request, body: bytes) -> Page:
    """Return a page of a list. Raises ApiUnavailableError if it is none."""
    page = _decode(request, body, Page)
    if not page.kind.endswith("List"):
        raise ApiUnavailableError(request, f"the answer is not a list but of the kind {one_line(page.kind)!r}")
    return page


def decode_deletion(request: Request, body: bytes) -> None:
    """Check the answer to a deletion: the object, or a Status. Raises ApiUnavailableError if it is neither."""
    _decode(request, body, _Head)


def decode_event(request: Request, line: bytes) -> WatchEvent:
    """Return an event of a watch. Raises the error of an ERROR event, and ApiUnavailableError if it is none."""
    event = _decode(request, line, _Event)
    if event.type == "ERROR":
        status = _decode(request, event.object, Status)
        raise from_status(request, status.code or 0, status)
    if event.type not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
        raise ApiUnavailableError(request, f"unknown event {one_line(event.type)!r}")
    head = _decode(request, event.object, _Head)
    if not head.metadata.resource_version:
        raise ApiUnavailableError(request, f"the {event.type} event has no resourceVersion")
    return WatchEvent(cast("EventType", event.type), _decode(request, event.object, dict[str, Any]))


def error(request: Request, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error for an answer whose status is not 2xx."""
    return from_answer(request, status, body, _retry_after(headers.get("Retry-After", "")))


def unauthorized(request: Request) -> ApiError:
    """Return the error for a token that the server rejects and that has not been replaced."""
    return UnauthorizedError(request, "401 Unauthorized: the token is invalid or expired", status=401)


def _retry_after(text: str) -> float | None:
    """Return the seconds of a Retry-After header: a number, or a date (RFC 9110, 10.2.3)."""
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return max(seconds, 0.0)


def _decode(request: Request, body: bytes | msgspec.Raw, expected: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=expected)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise ApiUnavailableError(request, f"the answer is invalid: {one_line(str(problem))}") from problem
