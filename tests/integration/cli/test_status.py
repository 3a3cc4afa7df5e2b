"""``aosp-plugin status``: prints the status report of a running plugin."""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aosp_plugin.cli import status
from aosp_plugin.framework.conditions import Severity
from aosp_plugin.framework.errors import ConfigError
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
from tests.served_node import ServedNode, node_with_pods
from tests.support import (
    RESOURCE,
    answered,
    free_port,
    listed,
    run_command,
)


@pytest.fixture
async def node(short_directory: Path) -> AsyncIterator[ServedNode]:
    """Yield a node on which the plugin serves three binder devices, and a pod has two of them."""
    async with node_with_pods(short_directory, {"phone-1": "games"}, port=free_port()) as node:
        node.devices.add(0, 1, 2)
        async with node.serve():
            await listed(node.kubelet, 3)
            await answered(node.port, "/readyz", "ok: ")
            await node.start_pod("phone-1", RESOURCE, 2)
            # A kubelet that is busy is asked again in 10 s.
            await answered(node.port, "/status", '"allocations":{"known":true')
            yield node


async def run(*arguments: str) -> tuple[int, str, str]:
    """Run the command in this process, and return its exit code and what it printed."""
    return await asyncio.to_thread(run_command, "status", *arguments)


def url_of(node: ServedNode) -> str:
    return f"http://127.0.0.1:{node.port}"


async def test_status_and_metrics_have_allocations_problems_and_log(node: ServedNode) -> None:
    """With --check, which does not combine with other ways of printing, the exit code is 3 if there are problems."""
    assert await run("--url", url_of(node), "--check") == (0, "", "")
    node.devices.remove(1, 2)
    await listed(node.kubelet, 1)
    await answered(node.port, "/metrics", f'aosp_plugin_devices_allocated{{resource="{RESOURCE}"}} 2.0')
    report = await asyncio.to_thread(status.fetch, url_of(node))
    assert (report.allocations.known, report.resources[0].counts.allocated) == (True, 2)
    assert [problem.kind for problem in report.problems] == ["missing"]
    record = next(each for each in report.log if each.message == "devices changed")
    assert record.fields["changed"] == "aosp_binder1:missing,aosp_binder2:missing"
    assert report.problems[0].since is not None
    assert record.time >= report.problems[0].since - 1
    code, out, err = await run("--url", url_of(node), "--check")
    assert (code, err) == (3, "")
    assert re.sub(r"\d+s", "0s", out) == (
        f"warning: {RESOURCE}: 2 devices missing: the file does not exist (for 0s): aosp_binder1, aosp_binder2\n"
    )
    assert (await run("--url", url_of(node), "--check", "--resource", "x.io/y"))[0] == 2
    assert (await run("--url", url_of(node), "--check", "--json"))[0] == 2
    assert (await run("--check", "--url", "http://127.0.0.1:1"))[0] == 1


# aosp-plugin status


async def test_an_unreachable_plugin_is_one_line() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for arguments in ([], ["--json"]):
        code, out, err = await run("--url", url, *arguments)
        assert (code, out) == (1, "")
        assert err.startswith(f"aosp-plugin: no plugin answers at {url} (Connection refused); ")
        assert err.endswith("check that aosp-plugin serve is running on this node, or set its address with --url\n")


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:9478", "https://here", "http://", "http://here:port", "http://here:99999"]
)
def test_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match=r"flag --url: '.*' is not allowed; allowed: http://HOST:PORT"):
        status.fetch(url)


# -- while no plugin runs: any user of the host can listen at its address, and answer anything


TEXT = "\033]0;title\a\033[2J\u202e\x9b1m\nsecond line"
"""Sequences that set a terminal's title, clear it, and reverse and style its text."""


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
    """And one that stops."""
    monkeypatch.setattr(status, "MAX_ANSWER", 1 << 20)
    async with stranger(itertools.chain(http(b""), itertools.repeat(b"x" * 65536))) as url:
        assert await run("--url", url) == (1, "", f"aosp-plugin: the answer from {url} is longer than 1 MiB\n")
    monkeypatch.setattr(status, "TIMEOUT", 0.3)
    async with stranger(itertools.chain(http(b"{"), http(b"}")), pause=1.0) as url:
        code, _, err = await run("--url", url)
    assert (code, err.partition(";")[0]) == (1, f"aosp-plugin: no plugin answers at {url} (timed out)")
