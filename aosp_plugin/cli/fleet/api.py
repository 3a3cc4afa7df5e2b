"""Requests to the API server through ``kubectl proxy``, and lists that are decoded while they arrive.

Lists are requested in protobuf and compressed: of 24,000 pods, the API server then encodes 100 MB in half the time that
it needs for JSON, and sends 5 MB. They come from its watch cache (resourceVersion=0), which may lag by a moment.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import urllib.parse
import zlib
from typing import TYPE_CHECKING, Final, TypeVar

from aosp_plugin.framework.api import objects_pb2
from aosp_plugin.framework.apiserver import errors
from aosp_plugin.framework.apiserver.errors import ApiUnavailableError, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
SECONDS: Final = 30.0
"""Without a byte from the server; a request has no other limit, because a list may be long."""
MAX_ANSWER: Final = 16 << 20
"""Bytes of an answer that is no list."""

_MAGIC: Final = b"k8s\0"
_PART: Final = 1 << 17
_GZIP: Final = 16 + zlib.MAX_WBITS


class Api:
    """The API server behind a unix socket. May be called in several threads."""

    def __init__(self, path: str) -> None:
        """``path`` is that of the socket."""
        self._path = path

    def list(self, path: str, query: Mapping[str, str], decode: Callable[[bytes], T | None]) -> list[T]:
        """Return the objects of a collection, decoded; without those for which ``decode`` returns None.

        Raises ApiError.
        """
        request = Request("list", path)
        pairs = {**query, "resourceVersion": "0"}
        target = f"{path}?{'&'.join(f'{name}={_quoted(value)}' for name, value in pairs.items())}"
        found: list[T] = []
        with self._answer(request, target, SECONDS, {"Accept": PROTOBUF, "Accept-Encoding": "gzip"}) as answer:
            items = Items(request)
            for part in _parts(answer):
                found += [each for item in items.feed(part) if (each := decode(item)) is not None]
            items.end()
        return found

    def text(self, path: str, seconds: float) -> bytes:
        """Return the body of an answer with status 2xx. Raises ApiError."""
        request = Request("get", path)
        headers = {"Accept": "application/json, text/plain", "Accept-Encoding": "gzip"}
        with self._answer(request, path, seconds, headers) as answer:
            body = b""
            for part in _parts(answer):
                body += part
                if len(body) > MAX_ANSWER:
                    raise ApiUnavailableError(request, f"the answer has more than {MAX_ANSWER} bytes")
            return body

    @contextlib.contextmanager
    def _answer(
        self, request: Request, target: str, seconds: float, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request, and yield its answer with status 2xx. Raises ApiError, also for errors within the block."""
        connection = _Connection(self._path, seconds)
        try:
            connection.request("GET", target, headers={**headers, "Host": "localhost"})
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's success
                raise _error(request, answer.status, b"".join(_parts(answer)))
            yield answer
        except (OSError, http.client.HTTPException, zlib.error) as problem:
            raise ApiUnavailableError(request, errors.one_line(str(problem)) or type(problem).__name__) from problem
        finally:
            connection.close()


class Items:
    """The items of a list in protobuf, whose bytes arrive in parts.

    The list is in an envelope: four bytes, and a message whose field 2 is the list, whose field 2 are the items.
    """

    def __init__(self, request: Request) -> None:
        """``request`` is that of errors."""
        self._request = request
        self._buffer = b""
        self._expected = _MAGIC
        self._inside = False

    def feed(self, part: bytes) -> list[bytes]:
        """Return the items that are complete with this part of the body."""
        self._buffer += part
        if self._expected:
            if len(self._buffer) < len(self._expected):
                return []
            if not self._buffer.startswith(self._expected):
                raise ApiUnavailableError(self._request, "the answer is not protobuf")
            self._buffer, self._expected = self._buffer[len(self._expected) :], b""
        return self._items()

    def end(self) -> None:
        """Raise ApiUnavailableError if the body has ended within a field."""
        if self._buffer or self._expected:
            raise ApiUnavailableError(self._request, "the answer is incomplete")

    def _items(self) -> list[bytes]:
        buffer, position, items = self._buffer, 0, []
        while position < len(buffer):
            tag = buffer[position]
            size, start = _varint(buffer, position + 1)
            if start < 0:
                break
            if tag == _FIELD_2 and not self._inside:  # what follows the list in the envelope are fields 3 and 4
                self._inside, position = True, start
                continue
            if start + size > len(buffer):
                break
            if tag & 7 != _LENGTH:
                raise ApiUnavailableError(self._request, "the answer is not a list in protobuf")
            if tag == _FIELD_2:
                items.append(buffer[start : start + size])
            position = start + size
        self._buffer = buffer[position:]
        return items


_LENGTH: Final = 2
"""The wire type of strings, bytes and messages."""
_FIELD_2: Final = 2 << 3 | _LENGTH


def _varint(buffer: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it, which is -1 if the number is incomplete."""
    value = shift = 0
    for index in range(position, len(buffer)):
        byte = buffer[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte
            return value, index + 1
        shift += 7
    return 0, -1


class _Connection(http.client.HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _parts(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the parts of a body, decompressed."""
    inflate = zlib.decompressobj(_GZIP) if answer.getheader("Content-Encoding") == "gzip" else None
    while part := answer.read(_PART):
        yield inflate.decompress(part) if inflate else part
    if inflate:
        yield inflate.flush()


def _error(request: Request, status: int, body: bytes) -> errors.ApiError:
    """Return the error of an answer, which is JSON, protobuf or the text of a proxy."""
    if not body.startswith(_MAGIC):
        return errors.from_answer(request, status, body)
    envelope = objects_pb2.Envelope.FromString(body[len(_MAGIC) :])
    answer = objects_pb2.Status.FromString(envelope.raw)
    return errors.from_status(request, status, errors.Status(message=answer.message, reason=answer.reason))


def _quoted(value: str) -> str:
    return urllib.parse.quote(value, safe="")
