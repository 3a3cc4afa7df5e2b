"""The client of the API server with the stand-in API server, on a TCP socket."""

import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.protocol import ApiError, ApiUnavailableError
from kubelet_standin.apiserver import ApiServer, Cut, Garbage, Hang, RawBytes
from tests.api_contract.common import SLICES, a_slice
from tests.static_credentials import StaticCredentials

COMPRESSED = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(
    b'{"kind":"NodeList","metadata":{"resourceVersion":"1"},"items":[]}', mtime=0
)
"""A list, of a server that does not respect what the client accepts. A megabyte can become a thousand."""


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[ApiClient]:
    async with client_of(api_server) as client:
        yield client


def client_of(api_server: ApiServer, **options: Any) -> contextlib.aclosing[ApiClient]:
    return contextlib.aclosing(ApiClient(StaticCredentials(api_server.url), **options))


@pytest.mark.parametrize(
    "fault",
    [
        Garbage(),
        Garbage(b""),
        Garbage(b"[]"),
        Garbage(b"null"),
        Garbage(b'{"kind":"Status","status":"Success"}'),
        Garbage(b'{"kind":"Node","metadata":[]}'),
        Garbage(b"\xff\xfe" * 1000),
        Garbage(b"[" * 100_000),
        Garbage(b"<html>", content_type="text/html"),
        Garbage(b"{}", content_type=""),
        Garbage(b"moved", status=302),
        Garbage(b"\x00\x01", status=500),
        Garbage(b'{"a":' + b"[" * 100_000, status=500),
        RawBytes(COMPRESSED),
        RawBytes(),
        RawBytes(b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n"),
        RawBytes(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"),
        RawBytes(b""),
        Cut(None),
        Cut(0),
        Cut(0.5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("verb", ["get", "list", "watch"])
async def test_an_answer_that_is_not_the_apis_is_unavailable(
    api_server: ApiServer, client: ApiClient, fault: Any, verb: str
) -> None:
    api_server.objects.create(protocol.NODES, {"metadata": {"name": "worker"}})
    api_server.faults.add(fault)
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: client.get(protocol.object_path(protocol.NODES, "worker")),
        "list": lambda: client.list(protocol.NODES),
        "watch": lambda: anext(client.watch(protocol.NODES, resource_version="1")),
    }
    expected = StopAsyncIteration if (verb, fault) == ("watch", Garbage(b"")) else ApiUnavailableError
    with pytest.raises(expected) as info:
        await requests[verb]()
    if expected is StopAsyncIteration:
        return
    text = str(info.value)
    assert text.isprintable()
    assert len(text) < 1000


async def test_an_event_without_end_is_given_up(api_server: ApiServer, client: ApiClient) -> None:
    api_server.faults.add(Garbage(bytes(5 << 20)))
    with pytest.raises(ApiUnavailableError, match=r"LineTooLong|Chunk too big"):
        await anext(client.watch(SLICES, resource_version="1"))


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_without_end_is_given_up(api_server: ApiServer, client: ApiClient, status: int) -> None:
    api_server.faults.add(
        RawBytes(f"HTTP/1.0 {status} x\r\nContent-Type: application/json\r\n\r\n".encode() + bytes(20 << 20))
    )
    with pytest.raises(ApiUnavailableError) as info:
        await client.list(SLICES)
    assert ("longer than 16 MiB" in str(info.value)) == (status == 200)
    assert len(str(info.value)) < 1000


async def test_a_request_that_hangs_has_a_deadline(api_server: ApiServer) -> None:
    """So has a watch that the server does not end when it should."""
    api_server.faults.add(Hang())
    async with client_of(api_server, limits=ApiLimits(request=0.1)) as client:
        for request in (client.list(SLICES), anext(client.watch(SLICES, resource_version="1"))):
            with pytest.raises(ApiUnavailableError, match="did not answer in time"):
                await request
    api_server.faults.clear()
    api_server.faults.silence_watches()
    async with client_of(api_server, limits=ApiLimits(watch=(0.0, 0.0), grace=0.2)) as client:
        with pytest.raises(ApiUnavailableError, match="did not answer in time"):
            await anext(client.watch(SLICES, resource_version="1"))


async def test_each_request_is_observed(api_server: ApiServer) -> None:
    seen: list[tuple[str, str, str]] = []
    async with client_of(api_server, observer=lambda *event: seen.append(event[:3])) as client:
        with pytest.raises(ApiError):
            await client.get(protocol.object_path(protocol.resource_claims("default"), "a"))
        await client.create(SLICES, a_slice("a"))
        await api_server.stop()
        with pytest.raises(ApiError):
            await client.list(SLICES)
    assert seen == [
        ("get", "resourceclaims", "404"),
        ("create", "resourceslices", "201"),
        ("list", "resourceslices", "error"),
    ]
