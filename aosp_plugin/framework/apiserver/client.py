"""Requests to the API server: a thin layer over aiohttp, with deadlines and limits.

Objects are plain dicts, because a client with models of its own would lose the fields that it does not know. A request
is sent once; ``retry`` repeats it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, overload
from urllib.parse import urlencode

import msgspec

from aosp_plugin.framework.apiserver.credentials import ServiceAccount
from aosp_plugin.framework.apiserver.protocol import (
    ApiError,
    ApiUnavailableError,
    Head,
    Object,
    Request,
    WatchEvent,
    decode,
    decode_event,
    decode_list,
    decode_object,
    from_answer,
    one_line,
    resource_of,
)
from aosp_plugin.framework.timing import Backoff

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

Body: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any]]"
"""The body of a request, before it is encoded."""

JSON: Final = "application/json"
METHODS: Final = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
"""HTTP methods by verb; GET for all others."""
NO_QUERY: Final[Mapping[str, str]] = {}

CONNECTIONS: Final = 16
"""Maximum number of connections. Further requests wait for one, within their deadline."""


MAX_ANSWER: Final = 16 << 20
"""Bytes of a body: the slices of tens of thousands of devices."""
MAX_ERROR: Final = 64 << 10
"""Bytes that are read of the body of an error."""
EVENT_BUFFER: Final = 2 << 20
"""Bytes that a connection buffers, half of the longest event of a watch: an API server stores up to 1.5 MiB."""


class ApiLimits(NamedTuple):
    """Time limits, in seconds."""

    request: float = 15.0
    """Limit of a whole request, and of the beginning of the answer to a watch."""
    watch: tuple[float, float] = (240.0, 360.0)
    """The server ends a watch after a random time in this range."""
    grace: float = 10.0
    """How long after its time a watch that receives nothing, and that the server has not ended, counts as broken."""


DEFAULT_LIMITS: Final = ApiLimits()


class ApiClient:
    """Requests of one process to one API server, for one event loop.

    Every method raises ApiError, whose subclasses are in ``protocol``, and nothing else but CancelledError. Paths are
    those of the API, such as ``protocol.object_path(protocol.NODES, name)``.
    """

    def __init__(
        self,
        credentials: ServiceAccount,
        *,
        observer: Callable[[str, str, str, float], None] = lambda _verb, _resource, _code, _seconds: None,
        user_agent: str = "dra-driver",
        limits: ApiLimits = DEFAULT_LIMITS,
    ) -> None:
        """``observer`` is called with verb, object, code and seconds of each request; code is a status or ``error``."""
        import aiohttp  # noqa: PLC0415 - 9 MB, for processes that have a client

        self._credentials = credentials
        self._observer = observer
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None  # requires a running event loop
        self._new_session: Callable[[], aiohttp.ClientSession] = lambda: aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=EVENT_BUFFER,
            # A megabyte can become a thousand; the server is near.
            auto_decompress=False,
            headers={"User-Agent": user_agent, "Accept": JSON, "Accept-Encoding": "identity"},
        )

    async def aclose(self) -> None:
        """Close the client; do not use it afterwards."""
        if self._session is not None:
            await self._session.close()

    @overload
    async def get(self, path: str) -> Object: ...
    @overload
    async def get(self, path: str, type: type[T]) -> T: ...
    async def get(self, path: str, type: type[Any] = Object) -> Any:  # noqa: A002 - as in msgspec
        """Return an object, decoded as ``type``: a msgspec struct with what the caller requires of it."""
        request = Request("get", path)
        return decode_object(request, await self.send(request), type)

    async def list(self, path: str, *, field_selector: str = "") -> Sequence[Object]:
        """Return the objects of a collection, such as those with ``spec.nodeName=a,spec.driver=b``.

        They have no ``kind`` and ``apiVersion``, which the API server omits in lists.
        """
        request = Request("list", path)
        return decode_list(request, await self.send(request, {"fieldSelector": field_selector}))

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
        resourceVersion of the last event. Status 410: list again. Close the generator (``contextlib.aclosing``), or its
        connection stays open.
        """
        request, limits = Request("watch", path), self._limits
        seconds = round(random.uniform(*limits.watch))  # noqa: S311 - spreads the load
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "fieldSelector": field_selector,
        }
        with _errors(request):
            async with asyncio.timeout(limits.request):
                response = await self._open(request, query)
            opened()
            async with response:
                while True:
                    async with asyncio.timeout(seconds + limits.grace):
                        line = await response.content.readline()
                    if not line:
                        return
                    yield decode_event(request, line)

    async def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object in the collection ``path``, and return what the server has stored.

        ConflictError if it exists. The server drops fields of feature gates that are off: compare. With ``dry_run``,
        the server does everything but store the object.
        """
        return await self._written(Request("create", path), body, {"dryRun": "All"} if dry_run else {})

    async def update(self, path: str, body: Mapping[str, Any]) -> Object:
        """Replace an object, and return what the server has stored.

        ConflictError if its resourceVersion is not that of ``body``.
        """
        return await self._written(Request("update", path), body)

    async def patch(self, path: str, patch: Body) -> Object:
        """Change an object, and return what the server has stored. The patch is applied to the current object.

        A list is a JSON patch (RFC 6902), whose operations are done all or not at all: InvalidObjectError if one cannot
        be done, such as a ``test`` that fails. A dict is a merge patch (RFC 7386).
        """
        return await self._written(Request("patch", path), patch)

    async def delete(self, path: str, *, uid: str = "", resource_version: str = "") -> None:
        """Delete an object, if it still has this UID and resourceVersion; otherwise, ConflictError."""
        given = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in given.items() if value}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        request = Request("delete", path)
        decode(request, await self.send(request, body=body), Head)  # the object, or a Status

    async def _written(self, request: Request, body: Body, query: Mapping[str, str] = NO_QUERY) -> Object:
        return decode_object(request, await self.send(request, query, body), Object)

    async def send(self, request: Request, query: Mapping[str, str] = NO_QUERY, body: Body | None = None) -> bytes:
        """Send a request, and return the body of an answer with status 2xx."""
        with _errors(request):
            async with asyncio.timeout(self._limits.request):
                async with await self._open(request, query, body) as response:
                    answer = await _beginning(response, MAX_ANSWER + 1)
        if len(answer) > MAX_ANSWER:
            raise ApiUnavailableError(request, f"the answer is longer than {MAX_ANSWER >> 20} MiB")
        return answer

    async def _open(
        self, request: Request, query: Mapping[str, str], body: Body | None = None
    ) -> aiohttp.ClientResponse:
        """Send a request, and return the beginning of an answer in JSON with status 2xx, which the caller closes."""
        from yarl import URL  # noqa: PLC0415 - a part of aiohttp

        access = await self._credentials.access(request)
        if self._session is None:
            self._session = self._new_session()
        given = urlencode({name: value for name, value in query.items() if value})
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        if body is not None:
            headers["Content-Type"] = _content_type(request, body)
        code, began = "error", time.monotonic()
        try:
            response = await self._session.request(
                METHODS.get(request.verb, "GET"),
                URL(f"{self._credentials.url}{request.path}?{given}", encoded=True),
                headers=headers,
                data=None if body is None else msgspec.json.encode(body),
                ssl=access.tls or True,  # True: verified against the authorities of the system
                allow_redirects=False,
            )
            code = str(response.status)
        finally:
            self._observer(request.verb, resource_of(request.path)[-1], code, time.monotonic() - began)
        success = 200 <= response.status < 300  # noqa: PLR2004 - HTTP's class
        if success and response.content_type == JSON:
            return response
        async with response:
            if success:
                problem = f"the answer is not JSON but {one_line(response.content_type)}"
                raise ApiUnavailableError(request, problem, status=response.status)
            retry_after = response.headers.get("Retry-After", "")
            raise from_answer(request, response.status, await _beginning(response, MAX_ERROR), retry_after)


async def _beginning(response: aiohttp.ClientResponse, size: int) -> bytes:
    """Return the body of an answer; of a longer one, the first ``size`` bytes."""
    try:
        return await response.content.readexactly(size)
    except asyncio.IncompleteReadError as error:
        return error.partial


def _content_type(request: Request, body: Body) -> str:
    if request.verb != "patch":
        return JSON
    return "application/merge-patch+json" if isinstance(body, dict) else "application/json-patch+json"


@contextlib.contextmanager
def _errors(request: Request) -> Iterator[None]:
    """Turn the errors of connections and of HTTP into ApiUnavailableError."""
    import aiohttp  # noqa: PLC0415 - as above

    try:
        yield
    except ApiError:
        raise
    except TimeoutError as error:
        problem = one_line(str(error)) or "the server did not answer in time"
        raise ApiUnavailableError(request, problem) from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise ApiUnavailableError(request, f"cannot connect: {one_line(str(error.certificate_error))}") from error
    except aiohttp.ClientConnectorError as error:
        code = error.os_error.errno
        text = os.strerror(code) if code else str(error.os_error)
        raise ApiUnavailableError(request, f"cannot connect to {error.host}:{error.port}: {one_line(text)}") from error
    except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError, ValueError) as error:
        raise ApiUnavailableError(request, f"{type(error).__name__}: {one_line(str(error))}") from error


async def retry(attempt: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Return the result of ``attempt``, which is repeated for ``seconds`` while its error is transient.

    Raises the last error when another attempt would begin too late, or when the time is over within an attempt.
    """
    backoff = Backoff()
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    last: ApiError | None = None
    try:
        while True:
            try:
                async with asyncio.timeout_at(end):
                    return await attempt()
            except TimeoutError:
                raise last or ApiUnavailableError(None, f"no answer within {seconds:g} s") from None
            except ApiError as error:
                pause = backoff.pause(error.retry_after)
                if not error.transient or loop.time() + pause >= end:
                    raise
                last = error
            await asyncio.sleep(pause)
    finally:
        del last  # its traceback has this frame, and each would keep the other
