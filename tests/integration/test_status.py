"""The state of the node: over HTTP from a plugin that runs, and as ``aosp-plugin status`` prints it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import gzip
import http.client
import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import termios
import weakref
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from aosp_plugin.binder.discovery.health import Reason, Verify
from aosp_plugin.cli import status
from aosp_plugin.config import Config, NumberedSets, Resource
from aosp_plugin.daemon import endpoints
from aosp_plugin.daemon.assembly import assemble
from aosp_plugin.daemon.leak_detector import LeakDetector
from aosp_plugin.errors import ConfigError, ServiceError
from aosp_plugin.framework import podresources_client
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.service.http import Answer, serving
from aosp_plugin.framework.service.metrics import Metrics
from aosp_plugin.testing import Container, Kubelet, Pod
from aosp_plugin.testing.podresources_server import PodResources
from tests.support import PATIENCE, RESOURCE, Nodes, Serve, free_port, listed, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

COMMAND = [sys.executable, "-m", "aosp_plugin", "status"]
REFRESH_OFTEN = "from aosp_plugin.cli import main, status; status.WATCH_INTERVAL = 0.05; raise SystemExit(main.main())"
WATCH = [sys.executable, "-c", REFRESH_OFTEN, "status", "--watch"]
"""``aosp-plugin status --watch`` with a short interval."""
PHONE = Pod("phone-1", [Container("android", {RESOURCE: 2})])


class Node(NamedTuple):
    """A plugin that runs, and its kubelet."""

    url: str
    kubelet: Kubelet
    nodes: Nodes
    serve: Serve


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kubelet waited for, however busy the machine is, where the plugin is in this process."""
    monkeypatch.setattr(podresources_client, "PATIENCE", PATIENCE)
    monkeypatch.setattr(podresources_client, "DEADLINE", PATIENCE)


@pytest.fixture
async def node(nodes: Nodes, kubelet_dir: str) -> AsyncIterator[Node]:
    """Run ``aosp-plugin serve`` with three nodes, and a pod that has two of them."""
    nodes.make(0, 1, 2)
    address = f"127.0.0.1:{free_port()}"
    path = os.path.join(kubelet_dir, "pod-resources.sock")
    environment = {
        "AOSP_PLUGIN_POD_RESOURCES_SOCKET": path,
        "NODE_NAME": "node-7",
        "AOSP_PLUGIN_LEAK_SCAN_INTERVAL": "0",
    }
    async with (
        Kubelet(kubelet_dir) as kubelet,
        PodResources(kubelet, path, {"phone-1": "games"}),
        Serve(nodes, kubelet_dir, "--listen", address, environment=environment) as serve,
    ):
        await listed(kubelet, 3)
        await serve.logged("registered")
        await kubelet.admit(PHONE)
        while (await asyncio.to_thread(status.fetch, f"http://{address}")).allocations.problem:
            pass  # a busy kubelet is not waited for, and what it said is told for seconds
        yield Node(f"http://{address}", kubelet, nodes, serve)


async def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run the command, and return its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | (environment or {}),
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


# What a plugin tells


class Plugin:
    """A plugin in this process, with what it tells over HTTP."""

    def __init__(self, current: Config) -> None:
        self.files = FileEvents()
        self.metrics = Metrics(Reason)
        self.served = assemble(current, self.files, self.metrics.observer)
        self.leak_detector = LeakDetector(self.served, current.kubelet_dir, current.leak_scan_interval)
        self.stuck = ""
        self.routes = endpoints.routes(
            self.served,
            self.files,
            lambda: self.leak_detector.latest,
            self.metrics,
            stuck=lambda: self.stuck,
            pod_resources_socket=current.pod_resources_socket,
            leak_detection=current.leak_scan_interval > 0,
        )

    async def ask(self, path: str) -> Answer:
        """Return what is answered, asked from a thread as HTTP does."""
        return await asyncio.to_thread(self.routes[path])

    async def report(self) -> dict[str, Any]:
        """Return the report."""
        report: dict[str, Any] = json.loads(gzip.decompress((await self.ask("/status")).body))
        return report


@contextlib.asynccontextmanager
async def plugin(
    nodes: Nodes, kubelet_dir: str, *resources: Resource, pod_resources: str = ""
) -> AsyncIterator[Plugin]:
    """Run plugins in this process, until each has had its first look."""
    plain = Resource(device_dir=str(nodes.directory), verify=Verify.FILE)
    current = Config(kubelet_dir=kubelet_dir, pod_resources_socket=pod_resources, resources=resources or (plain,))
    one = Plugin(current)
    running = [asyncio.create_task(served.plugin.run()) for served in one.served]
    try:
        await until(lambda: all(served.plugin.inventory.snapshot.revision for served in one.served))
        yield one
    finally:
        for served in one.served:
            served.plugin.stop()
        await asyncio.gather(*running)
        one.files.close()


def changed(one: Plugin, count: int, served: int = 0) -> Callable[[], bool]:
    """Return whether so many devices are healthy."""
    return lambda: one.served[served].plugin.inventory.snapshot.healthy == count


async def test_what_has_not_changed_is_not_made_again(nodes: Nodes, kubelet_dir: str) -> None:
    """The answer is the same object, with the same tag; after a change it is another one."""
    nodes.make(0, 1)
    async with plugin(nodes, kubelet_dir) as one:
        first = await one.ask("/status")
        assert await one.ask("/status") is first
        nodes.make(2)
        await until(changed(one, 3))
        second = await one.ask("/status")
        assert second.tag != first.tag
        assert await one.ask("/status") is second
        assert len((await one.report())["resources"][0]["devices"]) == 3


async def test_whatever_changes_is_told(nodes: Nodes, kubelet_dir: str) -> None:
    """Registration, leaks and how files are watched, with the devices as they were."""
    nodes.make(0)
    async with plugin(nodes, kubelet_dir) as one:
        await until(lambda: one.served[0].plugin.unready.startswith("waiting"))
        before = await one.report()
        problem = f"waiting for the kubelet: there is no {kubelet_dir}/kubelet.sock"
        assert before["resources"][0]["problem"] == problem
        assert (await one.ask("/readyz")).body.decode() == f"{problem}\n"
        assert before["resources"][0]["leaks_problem"] == "leak detection is off (leak_scan_interval: 0)"
        await one.leak_detector.look()
        looked = await one.report()
        assert looked["resources"][0]["leaks_problem"] != before["resources"][0]["leaks_problem"]
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 1)
            await until(lambda: not one.served[0].plugin.unready)
            after = await one.report()
            assert (after["resources"][0]["registered"], after["resources"][0]["problem"]) == (True, "")
            assert after["watching"] == "inotify"
            one.served[0].plugin._refresher._files.polling = True
            assert (await one.report())["watching"] == "polling"


async def test_once_nobody_asks_no_old_snapshot_is_kept(nodes: Nodes, kubelet_dir: str) -> None:
    """That of ten thousand devices takes megabytes."""
    nodes.make(0)
    async with plugin(nodes, kubelet_dir) as one:
        await one.ask("/status")
        await one.ask("/metrics")
        old = weakref.ref(one.served[0].plugin.inventory.snapshot)
        nodes.make(1)
        await until(changed(one, 2))
        gc.collect()
        assert old() is None


async def test_who_has_what_is_asked_of_the_kubelet(nodes: Nodes, kubelet_dir: str, tmp_path: Path) -> None:
    """Where it is known, the metrics have it as well."""
    nodes.make(0, 1, 2)
    path = f"{kubelet_dir}/pods.sock"
    async with Kubelet(kubelet_dir) as kubelet, PodResources(kubelet, path):
        async with plugin(nodes, kubelet_dir, pod_resources=path) as one:
            await listed(kubelet, 3)
            await kubelet.admit(PHONE)
            report = await one.report()
            assert report["allocations"] == {"known": True, "problem": ""}
            assert report["resources"][0]["counts"]["allocated"] == 2
            text = (await one.ask("/metrics")).body.decode()
            assert f'aosp_plugin_devices_allocated{{resource="{RESOURCE}"}} 2.0' in text
        async with plugin(nodes, kubelet_dir, pod_resources=str(tmp_path / "none")) as one:
            report = await one.report()
            assert report["allocations"]["problem"].startswith(f"there is no {tmp_path}/none")
            assert report["resources"][0]["counts"]["unknown"] == 3
            assert "aosp_plugin_devices_allocated{" not in (await one.ask("/metrics")).body.decode()


async def test_metrics_ask_the_kubelet_themselves(nodes: Nodes, kubelet_dir: str) -> None:
    """Nobody may ever open the page."""
    nodes.make(0, 1)
    path = f"{kubelet_dir}/pods.sock"
    async with (
        Kubelet(kubelet_dir) as kubelet,
        PodResources(kubelet, path) as told,
        plugin(nodes, kubelet_dir, pod_resources=path) as one,
    ):
        await listed(kubelet, 2)
        await kubelet.admit(PHONE)
        assert told.asked == 0
        answer = await one.ask("/metrics")
        assert answer.content_type.startswith("text/plain; version=0.0.4")
        assert f'aosp_plugin_devices_allocated{{resource="{RESOURCE}"}} 2.0' in answer.body.decode()
        assert told.asked == 1


async def test_metrics_are_told_where_the_loop_is_stuck(
    nodes: Nodes, kubelet_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is when they are wanted; /status has nothing to tell then."""
    monkeypatch.setattr("aosp_plugin.framework.service.http.ANSWER_WITHIN", 0.05)
    async with plugin(nodes, kubelet_dir) as one:
        answers: list[Answer] = []
        asking = asyncio.get_running_loop().run_in_executor(None, lambda: answers.append(one.routes["/metrics"]()))
        while not answers:  # without a turn of the loop
            pass
        await asking
        assert b"aosp_plugin_build_info" in answers[0].body


async def test_probes_name_the_resource_where_there_are_several(nodes: Nodes, kubelet_dir: str) -> None:
    """And healthz what is wrong with the loop."""
    nodes.make(0)
    first = Resource(resource_name="x.io/a", device_dir=str(nodes.directory), verify=Verify.FILE)
    second = Resource(
        resource_name="x.io/b", device_dir=str(nodes.directory), device_prefix="other", verify=Verify.FILE
    )
    async with plugin(nodes, kubelet_dir, first, second) as one:
        problem = f"waiting for the kubelet: there is no {kubelet_dir}/kubelet.sock"
        await until(lambda: all(served.plugin.unready.startswith("waiting") for served in one.served))
        assert (await one.ask("/readyz")).body.decode() == f"x.io/a: {problem}; x.io/b: {problem}\n"
        assert (await one.ask("/healthz")).status == 200
        one.stuck = "the event loop has been stuck for 12 s"
        assert (await one.ask("/healthz")).body == b"the event loop has been stuck for 12 s\n"


async def test_nodes_of_sets_and_replicas_are_named(nodes: Nodes, kubelet_dir: str) -> None:
    """A device is not its node's name everywhere."""
    nodes.make(0, 1, 2, 3)
    resource = Resource(device_dir=str(nodes.directory), verify=Verify.FILE, sets=NumberedSets(size=2), replicas=2)
    async with plugin(nodes, kubelet_dir, resource) as one:
        (told,) = (await one.report())["resources"]
        assert [device["nodes"] for device in told["devices"]] == [
            ["aosp_binder0", "aosp_binder1"],
            ["aosp_binder0", "aosp_binder1"],
            ["aosp_binder2", "aosp_binder3"],
            ["aosp_binder2", "aosp_binder3"],
        ]


async def test_the_node_is_called_what_kubernetes_calls_it(
    nodes: Nodes, kubelet_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the variable says so; a pod's host name is its own."""
    monkeypatch.setenv("NODE_NAME", "node-7")
    async with plugin(nodes, kubelet_dir) as one:
        assert (await one.report())["node"] == "node-7"
    monkeypatch.delenv("NODE_NAME")
    async with plugin(nodes, kubelet_dir) as one:
        assert (await one.report())["node"] == os.uname().nodename


def test_a_daemon_loads_nothing_that_only_people_need() -> None:
    """Modules of other commands would cost memory on every node."""
    unwanted = [
        "psutil",
        "yaml",
        "aosp_plugin.testing",
        "aosp_plugin.cli.demo",
        "aosp_plugin.cli.status",
        "aosp_plugin.cli.nodes",
    ]
    unwanted += ["aosp_plugin.cli.summary", "importlib.resources", "zipfile", "selenium", "PIL"]
    program = (
        f"import sys, aosp_plugin.cli, aosp_plugin.daemon.serve; print([m for m in {unwanted} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == "[]\n"


async def test_a_process_serves_page_status_and_metrics(node: Node) -> None:
    """Each where the others are; and who has the report already is told so."""

    def ask(path: str, tag: str = "") -> tuple[int, str, str]:
        connection = http.client.HTTPConnection(node.url.removeprefix("http://"), timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"If-None-Match": tag})
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.headers["ETag"]

    assert (await asyncio.to_thread(ask, "/"))[:2] == (200, "text/html; charset=utf-8")
    assert (await asyncio.to_thread(ask, "/metrics"))[:2] == (200, "text/plain; version=0.0.4; charset=utf-8")
    status, kind, tag = await asyncio.to_thread(ask, "/status")
    assert (status, kind) == (200, "application/json")
    assert (await asyncio.to_thread(ask, "/status", tag))[0] == 304


async def test_a_slow_client_keeps_no_process(node: Node) -> None:
    """Neither one that says nothing nor one that does not take what it asked for."""
    host, port = node.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        node.serve.signal(signal.SIGTERM)
        assert await node.serve.finish() == 0


# aosp-plugin status


async def test_status_prints_pods_and_unhealthy_devices(node: Node) -> None:
    node.nodes.remove(2)
    await listed(node.kubelet, 2)
    code, out, err = await run("--url", node.url)
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0].startswith("node-7: aosp-plugin ")
    assert lines[1:] == [
        "",
        f"{RESOURCE}: registered with the kubelet",
        "  3 devices: 2 allocated, 0 free, 1 unhealthy, - leaked",
        "  leak detection is off (leak_scan_interval: 0)",
        "",
        "  Unhealthy",
        "    DEVICE        REASON   POD",
        "    aosp_binder2  missing",
        "",
        "  Pods",
        "    POD            CONTAINER  DEVICES",
        "    games/phone-1  android    aosp_binder0..1",
    ]


async def test_status_as_json_is_the_report_on_one_line(node: Node) -> None:
    code, out, _ = await run("--url", node.url, "--json")
    report = json.loads(out)
    assert code == 0
    assert out.count("\n") == 1
    assert (report["node"], report["resources"][0]["counts"]["allocated"]) == ("node-7", 2)


async def test_status_finds_the_plugin_by_its_variable(node: Node) -> None:
    address = node.url.removeprefix("http://")
    code, out, _ = await run(environment={"AOSP_PLUGIN_LISTEN": address})
    assert (code, out.splitlines()[2]) == (0, f"{RESOURCE}: registered with the kubelet")


async def test_status_of_one_resource(node: Node) -> None:
    code, out, _ = await run("--url", node.url, "--resource", RESOURCE, "--json")
    assert (code, [resource["name"] for resource in json.loads(out)["resources"]]) == (0, [RESOURCE])
    assert await run("--url", node.url, "--resource", "x.io/y") == (
        2,
        "",
        f'aosp-plugin: flag --resource: "x.io/y" is not served; allowed: {RESOURCE}\n',
    )


async def test_status_on_a_terminal_has_colors_and_fits_its_width(node: Node) -> None:
    out = await on_terminal([*COMMAND, "--url", node.url], columns=40)
    assert "\x1b[1m" in out
    lines = re.sub(r"\x1b\[\d+m", "", out).splitlines()
    assert max(map(len, lines)) == 40
    assert lines[0].endswith("…")
    assert "    games/phone-1  android    aosp_bind…" in lines


async def test_watch_appends_reports_and_errors_until_interrupted(node: Node) -> None:
    process = await asyncio.create_subprocess_exec(*WATCH, "--url", node.url, stdout=-1, stderr=-1)
    assert process.stdout is not None
    assert process.stderr is not None
    await line_with(process.stdout, "3 devices: 2 allocated, 1 free")
    node.nodes.remove(2)
    await line_with(process.stdout, "0 free, 1 unhealthy")
    node.serve.signal(signal.SIGTERM)
    await line_with(process.stderr, "no plugin answers at")
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    assert b"Traceback" not in await process.stderr.read()


async def test_watch_repaints_a_terminal(node: Node) -> None:
    """Each report replaces the one before, and is cut to the height of the terminal."""

    async def act(seen: Callable[[str], Any], process: asyncio.subprocess.Process) -> None:
        await seen("2 allocated")
        node.nodes.remove(2)
        await seen("1 unhealthy")
        node.serve.signal(signal.SIGTERM)
        await seen("no plugin answers at")
        process.send_signal(signal.SIGINT)

    out = await on_terminal([*WATCH, "--url", node.url], rows=6, act=act)
    screens = [screen.rstrip().splitlines() for screen in out.split("\x1b[2J\x1b[1;1H")]
    assert screens[0] == []
    assert max(map(len, screens)) == 5
    assert screens[1][-1] == "..."
    assert "no plugin answers at" in screens[-1][0]


async def test_a_closed_pipe_ends_watch_silently(node: Node) -> None:
    process = await asyncio.create_subprocess_shell(
        f"{shlex.join([*WATCH, '--url', node.url])} | head -n 1",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert (out.count(b"\n"), err) == (1, b"")


async def line_with(stream: asyncio.StreamReader, text: str) -> None:
    """Read until there is a line with ``text``."""
    async with asyncio.timeout(PATIENCE):
        while text not in (line := (await stream.readline()).decode()):
            assert line, "it ended"


async def on_terminal(
    command: list[str],
    columns: int = 100,
    rows: int = 50,
    act: Callable[[Callable[[str], Any], asyncio.subprocess.Process], Any] | None = None,
) -> str:
    """Run the command on a terminal of its own, and return all that it wrote there."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, rows.to_bytes(2, "little") + columns.to_bytes(2, "little") + bytes(4))
    covered = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE")}
    environment = covered | {"TERM": "xterm-256color", "PATH": os.environ["PATH"]}
    process = await asyncio.create_subprocess_exec(*command, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    reader = asyncio.StreamReader()
    with os.fdopen(leader, "rb", buffering=0) as terminal:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), terminal)
        out = ""

        async def seen(text: str) -> None:
            nonlocal out
            async with asyncio.timeout(PATIENCE):
                while text not in out:
                    part = (await reader.read(4096)).decode(errors="replace")
                    assert part, out
                    out += part

        if act:
            await act(seen, process)
        with contextlib.suppress(OSError):  # Linux tells the end of a terminal as EIO
            while part := await reader.read(4096):
                out += part.decode(errors="replace")
        assert await process.wait() == 0, out
    return out


async def test_an_unreachable_plugin_is_one_line() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for arguments in ([], ["--watch"], ["--json"]):
        code, out, err = await run("--url", url, *arguments)
        assert (code, out) == (1, "")
        assert err.startswith(f"aosp-plugin: no plugin answers at {url} (")
        assert err.endswith("check that aosp-plugin serve is running on this node, or set its address with --url\n")


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:9478", "https://here", "http://", "http://here:port", "http://here:99999"]
)
def test_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match=r'flag --url: ".*" is not allowed; allowed: http://HOST:PORT'):
        status.fetch(url)


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("10.1.2.3:80", "http://10.1.2.3:80"),
        ("0.0.0.0:9478", "http://127.0.0.1:9478"),
        ("[::]:9478", "http://[::1]:9478"),
        ("[fd00::1]:9478", "http://[fd00::1]:9478"),
    ],
)
def test_own_url_follows_from_the_listen_address(listen: str, url: str, tmp_path: Path) -> None:
    """The address comes from a variable, or from the file that a variable names; without either it is the default."""
    file = tmp_path / "c.yaml"
    file.write_text(f"version: v1\nlisten: '{listen}'\n")
    assert status.own_url({"AOSP_PLUGIN_LISTEN": listen}) == status.own_url({"AOSP_PLUGIN_CONFIG": str(file)}) == url
    assert status.own_url({}) == "http://127.0.0.1:9478"


def test_plugin_that_does_not_listen_has_no_url() -> None:
    with pytest.raises(ServiceError, match="the plugin does not listen for HTTP because listen is empty"):
        status.own_url({"AOSP_PLUGIN_LISTEN": ""})


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            Answer("text/plain", b"the event loop is stuck\n", HTTPStatus.SERVICE_UNAVAILABLE),
            "answers with HTTP status 503: the event loop is stuck",
        ),
        (Answer("text/plain", b"hello"), "is not a status report of this version"),
        (Answer("application/json", b'{"resources": 7}'), "is not a status report of this version"),
    ],
)
def test_unexpected_answer_is_an_error(answer: Answer, error: str) -> None:
    with serving(("127.0.0.1", 0), {"/status": lambda: answer}) as port, pytest.raises(ServiceError, match=error):
        status.fetch(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("path", ["/a/b", "/a/b/"])
def test_path_of_the_url_is_kept(path: str) -> None:
    """A proxy such as kubectl's serves the plugin below a path."""
    report = {"version": "1", "node": "n", "started": 1.0, "watching": "inotify"}
    body = json.dumps(report | {"allocations": {"known": True, "problem": ""}, "resources": []}).encode()
    with serving(("127.0.0.1", 0), {"/a/b/status": lambda: Answer("application/json", body)}) as port:
        assert status.fetch(f"http://127.0.0.1:{port}{path}").node == "n"
