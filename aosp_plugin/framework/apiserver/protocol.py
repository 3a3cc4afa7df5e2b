"""Requests to the API server and their answers: paths, objects, errors. All functions are pure.

::

    PluginError
    └── ApiError                     a request failed, with a status that has no class of its own
        ├── NotFoundError            404: no such object, or the server does not have this API
        ├── ConflictError            409: the object exists, has changed, or does not meet the precondition
        ├── InvalidObjectError       422: the server's validation rejects the object
        └── ApiUnavailableError      no usable answer: no credentials or connection, a timeout, an answer that is not
                                     the API's, or 5xx
"""

from __future__ import annotations

import http
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from aosp_plugin.framework.errors import PluginError

T = TypeVar("T")

Object: TypeAlias = dict[str, Any]
"""An object of the API, as decoded from JSON."""

NODES: Final = "/api/v1/nodes"
RESOURCE_API: Final = "/apis/resource.k8s.io/v1"
RESOURCE_SLICES: Final = f"{RESOURCE_API}/resourceslices"
MAX_RETRY_AFTER = 300.0
"""Seconds; a longer pause that a server asks for is not respected."""
_POLICY = "ValidatingAdmissionPolicy"
"""Part of the message if a policy denies a request that RBAC allows."""
MAX_TEXT = 500
"""Characters of a server's message that go into an error message."""


EventType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]


class WatchEvent(NamedTuple):
    """A change of a collection."""

    type: EventType
    """ERROR is raised instead."""
    object: Object
    """The object after the change, and before its deletion; of a bookmark, only metadata.resourceVersion is set."""
    resource_version: str
    """The version from which a watch yields all later changes."""


def resource_claims(namespace: str) -> str:
    """Return the path of the ResourceClaims of a namespace. Raises ValueError for an invalid name."""
    return f"{RESOURCE_API}/namespaces/{_segment(namespace)}/resourceclaims"


def events(namespace: str) -> str:
    """Return the path of the Events of a namespace. Raises ValueError for an invalid name."""
    return f"/api/v1/namespaces/{_segment(namespace)}/events"


def object_path(collection: str, name: str) -> str:
    """Return the path of an object of a collection. Raises ValueError for an invalid name."""
    return f"{collection}/{_segment(name)}"


def resource_of(path: str) -> tuple[str, str, str]:
    """Return API group, namespace and resource that a path names, such as ("", "", "nodes"); empty if it has none."""
    _, root, *rest = path.split("/")
    group, rest = (rest[0], rest[2:]) if root == "apis" else ("", rest[1:])
    namespace, rest = (rest[1], rest[2:]) if rest[2:] and rest[0] == "namespaces" else ("", rest)
    return group, namespace, rest[0] if rest else ""


def _segment(name: str) -> str:
    # As IsValidPathSegmentName does (apimachinery/pkg/api/validation/path).
    if name in {"", ".", ".."} or "/" in name or "%" in name:
        raise ValueError(f"{name!r} is not a valid name of an object")
    return urllib.parse.quote(name, safe="")


class Request(NamedTuple):
    """Verb and path of a request."""

    verb: str
    """As in RBAC rules: get, list, watch, create, update, patch, delete."""
    path: str

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class ApiError(PluginError):
    """A request failed. The message names verb and path, and is one line."""

    def __init__(
        self,
        request: Request | None,
        problem: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float | None = None,
    ) -> None:
        """``problem`` is a line of text; ``request`` is None if it concerns no single one."""
        super().__init__(f"API server: {f'{request}: ' if request else ''}{problem}")
        self.status = status
        """HTTP status; 0 without a usable answer."""
        self.reason = reason
        """The API's reason, such as AlreadyExists, Conflict or Expired; empty if the answer has none."""
        self.retry_after = retry_after
        """Seconds after which the server asks to try again; None if it does not."""

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later without any other change."""
        return self.status in _TRANSIENT or not 400 <= self.status < 500  # noqa: PLR2004 - HTTP's class


class NotFoundError(ApiError):
    """The object does not exist, or the server does not serve the API group or version."""


class ConflictError(ApiError):
    """The object already exists, has another resourceVersion, or another UID than the precondition."""


class InvalidObjectError(ApiError):
    """The server's validation rejects the object."""


class ApiUnavailableError(ApiError):
    """There is no usable answer: no connection, a timeout, an answer that is not the API's, or a status of 5xx."""


_TRANSIENT = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.TOO_MANY_REQUESTS})
"""Statuses of 4xx that end by themselves: the kubelet replaces a token, and throttling ends."""

_BY_STATUS: Mapping[int, type[ApiError]] = {
    http.HTTPStatus.NOT_FOUND: NotFoundError,
    http.HTTPStatus.CONFLICT: ConflictError,
    http.HTTPStatus.UNPROCESSABLE_ENTITY: InvalidObjectError,
}


class Status(msgspec.Struct):
    """A Status object, the API's answer to a request that failed (metav1.Status)."""

    kind: str = ""
    message: str | None = ""
    reason: str | None = ""
    code: int | None = 0


def from_answer(request: Request, status: int, body: bytes, retry_after: str = "") -> ApiError:
    """Return the error for an answer with an HTTP status that is not 2xx, or for the Status of a watch, with 0.

    ``retry_after`` is the header: seconds, or a date, which the API server does not send and which is ignored.
    """
    try:
        answer = msgspec.json.decode(body, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        answer = Status()
    if answer.kind != "Status":  # the text of a proxy, for example
        answer = Status(message=body[: 4 * MAX_TEXT].decode(errors="replace"))
    status = status or answer.code or 0
    reason = one_line(answer.reason or "")
    phrase = next((known.phrase for known in http.HTTPStatus if known == status), "unknown status")
    problem = f"{status} {reason or phrase}"
    if text := one_line(answer.message or ""):
        problem += f": {text}"
    default = ApiUnavailableError if not 400 <= status < 500 else ApiError  # noqa: PLR2004 - HTTP's classes
    kind = _BY_STATUS.get(status, default)
    if status == http.HTTPStatus.UNAUTHORIZED:
        problem += " (the token is invalid or expired)"
    if status == http.HTTPStatus.FORBIDDEN and _POLICY not in problem:
        group, namespace, resource = resource_of(request.path)
        api = f'API group "{group}"' if group else "the core API group"
        where = f" in namespace {namespace}" if namespace else ""
        problem += f" (the service account requires the verb {request.verb} on {resource} of {api}{where})"
    is_number = retry_after.isascii() and retry_after.isdecimal()
    pause = min(float(retry_after[:9]), MAX_RETRY_AFTER) if is_number else None
    return kind(request, problem, status=status, reason=reason, retry_after=pause)


def one_line(text: str) -> str:
    """Return a server's text as one line of limited length, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * MAX_TEXT]).split())
    return line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]}..."


class Metadata(msgspec.Struct, frozen=True):
    """The part of an object's metadata that is read."""

    uid: Annotated[str, msgspec.Meta(min_length=1)]


class StoredObject(msgspec.Struct, frozen=True):
    """An object: its UID stays, while another object may have its name later."""

    metadata: Metadata


class _HeadMetadata(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class Head(msgspec.Struct):
    """The fields that all objects and lists have."""

    kind: str
    metadata: _HeadMetadata = msgspec.field(default_factory=_HeadMetadata)
    items: list[Object] | None = None


class _Event(msgspec.Struct):
    type: EventType
    object: msgspec.Raw


def decode_object(request: Request, body: bytes, expected: type[T]) -> T:
    """Return an object as ``expected``. Raises ApiUnavailableError if the answer is not a valid one."""
    kind = decode(request, body, Head).kind
    if kind in {"", "Status"} or kind.endswith("List"):
        raise ApiUnavailableError(request, f"the answer is not an object but of the kind {one_line(kind)!r}")
    return decode(request, body, expected)


def decode_list(request: Request, body: bytes) -> Sequence[Object]:
    """Return the objects of a list. Raises ApiUnavailableError if the answer is not one."""
    head = decode(request, body, Head)
    if not head.kind.endswith("List") or not head.metadata.resource_version:
        raise ApiUnavailableError(request, f"the answer is not a list but of the kind {one_line(head.kind)!r}")
    return head.items or []


def decode_event(request: Request, line: bytes) -> WatchEvent:
    """Return an event of a watch. Raises the error of an ERROR event, and ApiUnavailableError for an invalid one."""
    event = decode(request, line, _Event)
    if event.type == "ERROR":
        raise from_answer(request, 0, bytes(event.object))
    version = decode(request, event.object, Head).metadata.resource_version
    if not version:
        raise ApiUnavailableError(request, f"the {event.type} event has no resourceVersion")
    return WatchEvent(event.type, decode(request, event.object, Object), version)


def decode(request: Request, body: bytes | msgspec.Raw, expected: type[T]) -> T:
    """Return an answer as ``expected``. Raises ApiUnavailableError."""
    try:
        return msgspec.json.decode(body, type=expected)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise ApiUnavailableError(request, f"the answer is invalid: {one_line(str(problem))}") from problem
