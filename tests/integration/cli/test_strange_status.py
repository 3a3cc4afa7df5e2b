"""``aosp-plugin status`` while no plugin runs: any user of the host can listen at its address, and answer anything."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pytest

from aosp_plugin.cli import status
from aosp_plugin.framework.conditions import Severity
from aosp_plugin.report.document import (
    Counts,
    DeviceReport,
    Known,
    PodContainer,
    Problem,
    Report,
    ResourceReport,
    State,
)
from tests.support import run_command

TEXT = "\033]0;title\a\033[2J\u202e\x9b1m\nsecond line"
"""Sequences that set a terminal's title, clear it, and reverse and style its text."""


async def run(*arguments: str) -> tuple[int, str, str]:
    """Run the command in this process, and return its exit code and what it printed."""
    return await asyncio.to_thread(run_command, "status", *arguments)


@contextlib.asynccontextmanager
async def stranger(answer: Iterable[bytes], pause: float = 0.0) -> AsyncIterator[str]:
    """Send the parts of an answer to a client, and yield the URL."""
    ended = asyncio.Event()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in answer:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)
        except ConnectionError:
            pass  # the client has had enough
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            ended.set()

    async with await asyncio.start_server(send, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await ended.wait()


def http(body: bytes, status_line: str = "200 OK") -> list[bytes]:
    return [f"HTTP/1.0 {status_line}\r\nContent-Type: application/json\r\n\r\n".encode(), body]


def hostile_report() -> Report:
    """Return a report with the text in every field that has text."""
    pod = PodContainer(TEXT, TEXT, TEXT)
    resource = ResourceReport(
        name=TEXT,
        registered=True,
        since=0.0,
        kubelet_allocatable=None,
        kubelet_published=None,
        revision=1,
        truncated=0,
        counts=Counts(total=1, healthy=0, unhealthy=1, allocated=1, free=0, unknown=0, gone=0),
        devices=(DeviceReport(TEXT, State.ALLOCATED, TEXT, TEXT, (), (TEXT,), (pod,)),),
    )
    problem = Problem(Severity.ERROR, TEXT, TEXT, TEXT, TEXT, TEXT, None, 1, (TEXT,))
    allocations = Known(known=True, problem="")
    return Report(TEXT, TEXT, 0.0, allocations, (resource,), (problem,))


@pytest.mark.parametrize("options", [[], ["--check"], ["--json"]], ids=" ".join)
async def test_a_report_does_not_control_the_terminal(options: list[str]) -> None:
    async with stranger(http(msgspec.json.encode(hostile_report()))) as url:
        _, out, err = await run("--url", url, *options)
    assert out
    assert err == ""
    lines = out.removesuffix("\n").split("\n")
    assert [line for line in lines if not line.isprintable() or line.startswith("second line")] == []


@pytest.mark.parametrize(
    "change",
    [{"started": 1e300}, {"problems": (Problem(Severity.ERROR, "", "", "", "", "", None, 1, (f"a{'9' * 5000}",)),)}],
    ids=["time", "digits"],
)
async def test_no_number_in_a_report_is_a_traceback(change: dict[str, Any]) -> None:
    report = msgspec.structs.replace(hostile_report(), **change)
    async with stranger(http(msgspec.json.encode(report))) as url:
        code, out, err = await run("--url", url)
    assert (code, bool(out), err[:11]) in {(0, True, ""), (1, False, "aosp-plugin")}


@pytest.mark.parametrize(
    "answer",
    [
        http(TEXT.encode(), "500 Error"),
        http(b'{"version": "\xff"}'),
        [f"{TEXT}{'x' * 60_000}\r\n\r\n".encode()],
        http(b'{"a":' + b"[" * 100_000),
    ],
    ids=["status", "encoding", "head", "depth"],
)
async def test_an_error_is_a_short_line_that_does_not_control_the_terminal(answer: list[bytes]) -> None:
    async with stranger(answer) as url:
        code, out, err = await run("--url", url)
    assert (code, out) == (1, "")
    assert err.removesuffix("\n").isprintable()
    assert len(err) < 1000


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "MAX_ANSWER", 1 << 20)
    async with stranger(itertools.chain(http(b""), itertools.repeat(b"x" * 65536))) as url:
        assert await run("--url", url) == (1, "", f"aosp-plugin: the answer from {url} is longer than 1 MiB\n")


async def test_an_answer_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "TIMEOUT", 0.3)
    async with stranger(itertools.chain(http(b"{"), http(b"}")), pause=1.0) as url:
        code, _, err = await run("--url", url)
    assert (code, err.partition(";")[0]) == (1, f"aosp-plugin: no plugin answers at {url} (timed out)")
