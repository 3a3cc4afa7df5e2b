"""Requests to the API server: a thin layer over aiohttp.

Objects are plain dicts, because a client with models of its own would lose the fields that it does not know. A request
is sent once; ``retries`` repeats it.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias, TypeVar, overload

from aosp_plugin.framework.apiserver import answers
from aosp_plugin.framework.apiserver.errors import ApiUnavailableError, GoneError, Request
from aosp_plugin.framework.apiserver.lines import Lines
from aosp_plugin.framework.apiserver.transport import DEFAULT_LIMITS, ApiLimits, Transport, translate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from types import TracebackType

    from aosp_plugin.framework.apiserver.answers import WatchEvent
    from aosp_plugin.framework.apiserver.credentials import Credentials

T = TypeVar("T")

Object: TypeAlias = dict[str, Any]
"""An object of the API, as decoded from JSON."""

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"

PAGE: Final = 500
"""Objects of one page of a list, as in client-go."""


class ObjectList(NamedTuple):
    """The objects of a collection at one time."""

    items: list[Object]
    """Without ``kind`` and ``apiVersion``, which the API server omits in lists."""
    resource_version: str
    """Where a watch of all later changes begins."""


class ApiClient:
    """Requests of one process to one API server; an async context manager that belongs to one event loop.

    Every method raises ApiError, whose subclasses are in ``errors``, and nothing else but CancelledError. Paths are
    those of the API, such as ``paths.object_path(paths.NODES, name)``.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        observer: Callable[[str, str, str], None] = lambda _verb, _resource, _code: None,
        user_agent: str = "dra-driver",
        limits: ApiLimits = DEFAULT_LIMITS,
    ) -> None:
        """``observer`` is called with verb, resource and code of each answer, as DraObserver.api_request."""
        self._transport = Transport(credentials, observer, user_agent, limits)

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        await self.close()

    async def close(self) -> None:
        """Close all connections and the credentials. No request may follow."""
        await self._transport.close()

    @overload
    async def get(self, path: str) -> Object: ...
    @overload
    async def get(self, path: str, type: type[T]) -> T: ...
    async def get(self, path: str, type: type[Any] = dict[str, Any]) -> Any:  # noqa: A002 - as in msgspec
        """Return an object, decoded as ``type``: a msgspec struct with what the caller requires of it."""
        request = Request("get", path)
        return answers.decode_object(request, await self._transport.request(request, "GET"), type)

    async def list(self, path: str, *, field_selector: str = "") -> ObjectList:
        """Return the objects of a collection, such as those with ``spec.nodeName=a,spec.driver=b``."""
        try:
            return await self._list(path, field_selector, PAGE)
        except GoneError:  # the rest of the list has been compacted
            return await self._list(path, field_selector, 0)

    async def watch(
        self,
        path: str,
        *,
        field_selector: str = "",
        resource_version: str,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield the changes of a collection since a resourceVersion, and bookmarks.

        ``opened`` is called when the server has accepted the request, which may be long before the first event.
        It ends without an error when the server ends the watch, which it does after some minutes; watch again from the
        resourceVersion of the last event. GoneError: list again. Close the generator (``contextlib.aclosing``), or its
        connection stays open.
        """
        request = Request("watch", path)
        seconds = round(random.uniform(*self._transport.limits.watch))  # noqa: S311 - spreads the load
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            **({"fieldSelector": field_selector} if field_selector else {}),
        }
        with translate(request):
            async with asyncio.timeout(self._transport.limits.request):
                response = await self._transport.open(request, "GET", query, None)
            opened()
            limits = self._transport.limits
            async with response:
                lines = Lines(request, response.content, limit=seconds + limits.grace, max_size=limits.event)
                async for line in lines:
                    event = answers.decode_event(request, line)
                    if event.type == "BOOKMARK":
                        lines.limit = limits.silence
                    yield event

    async def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object in the collection ``path``, and return what the server has stored.

        ConflictError if it exists. The server drops fields of feature gates that are off: compare. With ``dry_run``,
        the server does everything but store the object.
        """
        request = Request("create", path)
        query = {"dryRun": "All"} if dry_run else {}
        body_of_answer = await self._transport.request(request, "POST", query=query, body=body)
        return answers.decode_object(request, body_of_answer, dict[str, Any])

    async def update(self, path: str, body: Mapping[str, Any]) -> Object:
        """Replace an object, and return what the server has stored.

        ConflictError if its resourceVersion is not that of ``body``.
        """
        request = Request("update", path)
        return answers.decode_object(request, await self._transport.request(request, "PUT", body=body), dict[str, Any])

    async def patch(self, path: str, patch: Sequence[Object] | Object) -> Object:
        """Change an object, and return what the server has stored. It is applied to the object as it is then.

        A list is a JSON patch (RFC 6902), whose operations are done all or not at all: InvalidObjectError if one cannot
        be done, such as a ``test`` that fails. A dict is a merge patch (RFC 7386).
        """
        request = Request("patch", path)
        kind = MERGE_PATCH if isinstance(patch, dict) else JSON_PATCH
        body_of_answer = await self._transport.request(request, "PATCH", body=patch, content_type=kind)
        return answers.decode_object(request, body_of_answer, dict[str, Any])

    async def delete(self, path: str, *, uid: str = "", resource_version: str = "") -> None:
        """Delete an object, if it still has this UID and resourceVersion; otherwise, ConflictError."""
        given = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in given.items() if value}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        request = Request("delete", path)
        answers.decode_deletion(request, await self._transport.request(request, "DELETE", body=body))

    async def _list(self, path: str, field_selector: str, page_size: int) -> ObjectList:
        request = Request("list", path)
        query = {"fieldSelector": field_selector} if field_selector else {}
        if page_size:
            query["limit"] = str(page_size)
        items: list[Object] = []
        size = 0
        while True:
            body = await self._transport.request(request, "GET", query=query)
            size += len(body)
            if size > self._transport.limits.answer:
                raise ApiUnavailableError(request, f"the list has more than {self._transport.limits.answer} bytes")
            page = answers.decode_page(request, body)
            items += page.items or []
            if not page.metadata.next:
                return ObjectList(items, page.metadata.resource_version)
            query["continue"] = page.metadata.next
