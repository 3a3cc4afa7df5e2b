"""HTTP requests to the API server, with deadlines, limits and credentials; errors are those of ``errors``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

from aosp_plugin.framework.apiserver import answers
from aosp_plugin.framework.apiserver.errors import ApiError, ApiUnavailableError, Request, one_line
from aosp_plugin.framework.apiserver.paths import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aosp_plugin.framework.apiserver.credentials import Access, Credentials

JSON: Final = "application/json"

Body: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any]]"
"""Of a request, before it is encoded."""

CONNECTIONS: Final = 16
"""The most connections at a time. Requests beyond that wait for one, within their deadline."""
KEEP_CONNECTION: Final = 30.0
"""Seconds for which an unused connection stays open."""

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A peer that vanishes without a word is noticed after 60 s. Seconds; the last one is in milliseconds."""


class ApiLimits(NamedTuple):
    """Times in seconds, and sizes in bytes."""

    connect: float = 5.0
    """For a TCP connection and the TLS handshake."""
    request: float = 15.0
    """For a whole request, or for the beginning of the answer to a watch."""
    watch: tuple[float, float] = (240.0, 360.0)
    """The server ends a watch after a random time in this range."""
    silence: float = 130.0
    """A watch in which nothing arrives for this time after a bookmark is broken: the API server then sends one every
    minute. It may send nothing before the first one, because a bookmark has a later resourceVersion than its cache had
    at the beginning of the watch (apiserver/pkg/storage/cacher/cache_watcher.go, ``process``)."""
    grace: float = 10.0
    """A watch that the server does not end within this time after its end is broken."""
    answer: int = 32 << 20
    """The largest answer, and the largest list of several pages. etcd's limit for an object is 1.5 MiB."""
    event: int = 4 << 20
    """The largest event of a watch."""


DEFAULT_LIMITS: Final = ApiLimits()


class Transport:
    """Sends requests, each once, to one API server. For one event loop."""

    def __init__(
        self, credentials: Credentials, observer: Callable[[str, str, str], None], user_agent: str, limits: ApiLimits
    ) -> None:
        self.limits = limits
        self._credentials = credentials
        self._observer = observer
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None  # requires a running event loop

    async def close(self) -> None:
        """Close all connections and the credentials. No request may follow."""
        self._credentials.close()
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        request: Request,
        method: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        content_type: str = JSON,
    ) -> bytes:
        """Send a request, and return the body of an answer with status 2xx."""
        with translate(request):
            async with asyncio.timeout(self.limits.request):
                response = await self.open(request, method, query or {}, body, content_type)
                async with response:
                    return await self._read(request, response)

    async def open(
        self,
        request: Request,
        method: str,
        query: Mapping[str, str],
        body: Body | None,
        content_type: str = JSON,
    ) -> aiohttp.ClientResponse:
        """Send a request, and return the beginning of an answer in JSON with status 2xx, which the caller closes."""
        access = await self._credentials.access(request)
        response = await self._send(request, access, method, query, body, content_type)
        if response.status == 401:  # noqa: PLR2004 - Unauthorized: the token may have been replaced
            response.close()
            rejected, access = access, await self._credentials.access(request, rejected=access.token)
            if access.token == rejected.token:
                raise answers.unauthorized(request)
            response = await self._send(request, access, method, query, body, content_type)
        try:
            await self._check(request, response)
        except BaseException:
            response.close()
            raise
        return response

    async def _send(
        self,
        request: Request,
        access: Access,
        method: str,
        query: Mapping[str, str],
        body: Body | None,
        content_type: str,
    ) -> aiohttp.ClientResponse:
        target = f"{self._credentials.url}{request.path}{f'?{urlencode(query)}' if query else ''}"
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = msgspec.json.encode(body)
        if self._session is None:
            self._session = _session(self._user_agent, self.limits)
        code = "error"
        try:
            response = await self._session.request(
                method,
                URL(target, encoded=True),
                headers=headers,
                data=data,
                ssl=access.tls or True,  # True: verified against the authorities of the system
                allow_redirects=False,
            )
            code = str(response.status)
        finally:
            self._observer(request.verb, parse(request.path).resource, code)
        return response

    async def _check(self, request: Request, response: aiohttp.ClientResponse) -> None:
        """Raise the error of an answer whose status is not 2xx, or that is not JSON."""
        if not 200 <= response.status < 300:  # noqa: PLR2004 - HTTP's success
            body = await self._read(request, response)
            raise answers.error(request, response.status, response.headers, body)
        kind = response.headers.get("Content-Type", "")
        if kind.partition(";")[0].strip().lower() != JSON:
            raise ApiUnavailableError(
                request,
                f"the answer is not JSON but {one_line(kind) or 'without a Content-Type'}",
                status=response.status,
            )

    async def _read(self, request: Request, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > self.limits.answer:
                raise ApiUnavailableError(request, f"the answer has more than {self.limits.answer} bytes")
        return bytes(body)


def _session(user_agent: str, limits: ApiLimits) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=CONNECTIONS, keepalive_timeout=KEEP_CONNECTION, socket_factory=_socket, ttl_dns_cache=60
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # a small answer cannot become a large one
        headers={"User-Agent": user_agent, "Accept": "application/json", "Accept-Encoding": "identity"},
        trust_env=False,
    )


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket for an address of getaddrinfo that notices when its peer has vanished."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


@contextlib.contextmanager
def translate(request: Request) -> Iterator[None]:
    """Turn the errors of connections and of HTTP into ApiUnavailableError."""
    try:
        yield
    except ApiError:
        raise
    except TimeoutError as error:
        raise ApiUnavailableError(request, one_line(str(error)) or "the server did not answer in time") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise ApiUnavailableError(request, f"cannot connect: {one_line(str(error.certificate_error))}") from error
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno
        text = os.strerror(number) if number else str(error.os_error)
        raise ApiUnavailableError(request, f"cannot connect to {error.host}:{error.port}: {one_line(text)}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ApiUnavailableError(request, f"{type(error).__name__}: {one_line(str(error))}") from error
