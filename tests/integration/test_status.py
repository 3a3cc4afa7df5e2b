"""``aosp-plugin status``: prints the status report of a running plugin."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import sys
import termios
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aosp_plugin.cli import status
from aosp_plugin.cli.summary import summary
from aosp_plugin.framework.errors import ConfigError, ServiceError
from aosp_plugin.framework.service.http import Answer
from aosp_plugin.report.document import Counts, ResourceReport
from kubelet_standin import Container, Kubelet, Pod
from kubelet_standin.podresources_server import PodResources
from tests.support import (
    PATIENCE,
    RESOURCE,
    DeviceDirectory,
    Serve,
    free_port,
    http_get,
    http_serving,
    listed,
    run_command,
)

COMMAND = [sys.executable, "-m", "aosp_plugin", "status"]
HAS_SELINUX = "\tselinuxfs\n" in Path("/proc/filesystems").read_text()
PHONE = Pod("phone-1", [Container("android", {RESOURCE: 2})])


class Node(NamedTuple):
    """A running plugin and its kubelet."""

    url: str
    kubelet: Kubelet
    device_directory: DeviceDirectory
    serve: Serve


@pytest.fixture
async def node(device_directory: DeviceDirectory, kubelet_dir: str) -> AsyncIterator[Node]:
    """Run ``aosp-plugin serve`` with three binder devices, and a pod that has two of them."""
    device_directory.add(0, 1, 2)
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
        Serve(device_directory, kubelet_dir, "--listen", address, environment=environment) as serve,
    ):
        await listed(kubelet, 3)
        await serve.logged("registered")
        await kubelet.admit(PHONE)
        while (await asyncio.to_thread(status.fetch, f"http://{address}")).allocations.problem:
            pass  # if the kubelet was too busy to answer, its error is cached for seconds
        yield Node(f"http://{address}", kubelet, device_directory, serve)


async def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run the command in this process, and return its exit code and what it printed."""
    return await asyncio.to_thread(run_command, "status", *arguments, environment=environment)


# aosp-plugin status


async def test_status_prints_pods_and_unhealthy_devices(node: Node) -> None:
    node.device_directory.remove(2)
    await listed(node.kubelet, 2)
    code, out, err = await run("--url", node.url)
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0].startswith("node-7: aosp-plugin ")
    assert lines[1].startswith(f"  SELinux: {'yes, ' if HAS_SELINUX else 'no; '}")
    changing = re.compile(r"\b\d+s\b|, which can allocate \d of 3 devices")
    assert [changing.sub(lambda found: "0s" if found[0][0].isdigit() else "", line) for line in lines[2:]] == [
        "",
        f"{RESOURCE}: registered with the kubelet for 0s",
        "  3 devices: 2 healthy, 1 unhealthy, 2 allocated, 0 free, - leaked",
        "  warning: 1 device missing: the file does not exist (for 0s): aosp_binder2",
        "  leak detection is off (leak_scan_interval: 0)",
        "",
        "  Unhealthy",
        "    DEVICE        AGE  REASON   POD",
        "    aosp_binder2  0s   missing",
        "",
        "  Pods",
        "    POD            CONTAINER  AGE  DEVICES",
        "    games/phone-1  android    0s   aosp_binder0..1",
    ]


async def test_check_exits_with_3_if_there_are_problems(node: Node) -> None:
    """It does not combine with the other ways of printing."""
    assert await run("--url", node.url, "--check") == (0, "", "")
    node.device_directory.remove(1, 2)
    await listed(node.kubelet, 1)
    code, out, err = await run("--url", node.url, "--check")
    assert (code, err) == (3, "")
    assert re.sub(r"\d+s", "0s", out) == (
        f"warning: {RESOURCE}: 2 devices missing: the file does not exist (for 0s): aosp_binder1..2\n"
    )
    assert (await run("--url", node.url, "--check", "--resource", "x.io/y"))[0] == 2
    assert (await run("--url", node.url, "--check", "--json"))[0] == 2
    assert (await run("--check", "--url", "http://127.0.0.1:1"))[0] == 1


async def test_status_is_limited_to_a_pod_and_to_unhealthy_devices(node: Node) -> None:
    async def ids(*arguments: str) -> list[str]:
        _, out, _ = await run("--url", node.url, "--json", *arguments)
        return [device["id"] for device in json.loads(out)["resources"][0]["devices"]]

    node.device_directory.remove(1)
    await listed(node.kubelet, 2)
    assert await ids("-n", "games") == await ids("--pod", "phone-1") == ["aosp_binder0", "aosp_binder1"]
    assert await ids("--unhealthy") == ["aosp_binder1"]
    assert await ids("--pod", "phone-1", "--namespace", "default") == []


async def test_all_views_count_allocated_and_gone_devices_alike(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    """Of the four devices of a pod, one is healthy, one is missing, one is leaked, and one is gone."""
    device_directory.add(*range(6))
    address = f"127.0.0.1:{free_port()}"
    socket = os.path.join(kubelet_dir, "pods.sock")
    environment = {"AOSP_PLUGIN_POD_RESOURCES_SOCKET": socket, "AOSP_PLUGIN_LEAK_SCAN_INTERVAL": "1"}
    pod = Pod("phone-1", [Container("android", {RESOURCE: 4})])
    async with (
        Kubelet(kubelet_dir) as kubelet,
        PodResources(kubelet, socket),
        Serve(device_directory, kubelet_dir, "--listen", address, environment=environment) as serve,
    ):
        await listed(kubelet, 6)
        await kubelet.admit(pod)
        held = os.open(device_directory.directory / "aosp_binder2", os.O_RDONLY)
        with contextlib.closing(os.fdopen(held)):
            device_directory.remove(3)
            await listed(kubelet, 5)
            serve.signal(signal.SIGHUP)  # forgets missing devices
            await kubelet.wait_for(lambda k: len(k.resource(RESOURCE).devices) == 5, PATIENCE)
            device_directory.remove(1)
            await listed(kubelet, 4)
            resource = await fetched(address, lambda resource: resource.counts.leaked and resource.counts.allocated)
            counts = resource.counts
            _, _, metrics = await http_get(int(address.split(":")[1]), "/metrics")
            (line,) = (line for line in await asyncio.to_thread(lines_of, address) if " devices: " in line)
    states = {device.id: (str(device.state), device.reason, len(device.pods)) for device in resource.devices}
    assert states == {
        "aosp_binder0": ("allocated", "", 1),
        "aosp_binder1": ("unhealthy", "missing", 1),
        "aosp_binder2": ("leaked", "", 1),
        "aosp_binder4": ("free", "", 0),
        "aosp_binder5": ("free", "", 0),
        "aosp_binder3": ("unhealthy", "gone", 1),
    }
    assert counts == Counts(total=5, healthy=4, unhealthy=1, allocated=4, free=2, unknown=0, leaked=1, gone=1)
    assert line == "  5 devices: 4 healthy, 1 unhealthy, 4 allocated (1 gone), 2 free, 1 leaked"
    label = f'{{resource="{RESOURCE}"}}'
    assert f"aosp_plugin_devices_allocated{label} 4.0\n" in metrics
    assert f"aosp_plugin_devices_gone{label} 1.0\n" in metrics
    assert f"aosp_plugin_leaked_devices{label} 1.0\n" in metrics
    assert f'aosp_plugin_devices{{health="healthy",reason="",resource="{RESOURCE}"}} 4.0\n' in metrics


async def fetched(address: str, condition: Callable[[ResourceReport], object]) -> ResourceReport:
    """Return the first report of the resource that meets a condition."""
    async with asyncio.timeout(PATIENCE):
        while True:
            (resource,) = (await asyncio.to_thread(status.fetch, f"http://{address}")).resources
            if condition(resource):
                return resource


def lines_of(address: str) -> list[str]:
    """Return the lines that the command prints."""
    return [line.text for line in summary(status.fetch(f"http://{address}"))]


async def test_status_of_one_resource(node: Node) -> None:
    """As JSON, the report is on one line. The address may come from the plugin's variable."""
    environment = {"AOSP_PLUGIN_LISTEN": node.url.removeprefix("http://")}
    code, out, _ = await run("--resource", RESOURCE, "--json", environment=environment)
    report = json.loads(out)
    assert (code, out.count("\n")) == (0, 1)
    assert report["node"] == "node-7"
    assert [resource["name"] for resource in report["resources"]] == [RESOURCE]
    error = f"aosp-plugin: flag --resource: 'x.io/y' is not served; allowed: {RESOURCE}\n"
    assert await run("--url", node.url, "--resource", "x.io/y") == (2, "", error)


async def test_status_on_a_terminal_has_colors_and_fits_its_width(node: Node) -> None:
    out = await on_terminal([*COMMAND, "--url", node.url], columns=40)
    assert "\x1b[1m" in out
    lines = re.sub(r"\x1b\[\d+m", "", out).splitlines()
    assert max(map(len, lines)) == 40
    assert lines[0].endswith("…")
    assert any(re.fullmatch(r"    games/phone-1  android    \d+s +aosp…", line) for line in lines)


async def line_with(stream: asyncio.StreamReader, text: str) -> None:
    """Read until a line contains ``text``."""
    async with asyncio.timeout(PATIENCE):
        while text not in (line := (await stream.readline()).decode()):
            assert line, "the process ended"


async def on_terminal(
    command: list[str],
    columns: int = 100,
    rows: int = 50,
    act: Callable[[Callable[[str], Any], asyncio.subprocess.Process], Any] | None = None,
) -> str:
    """Run the command on a pseudo-terminal, and return its output. ``act`` gets a function that waits for a text."""
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

        async def wait_for(text: str) -> None:
            nonlocal out
            async with asyncio.timeout(PATIENCE):
                while text not in out:
                    part = (await reader.read(4096)).decode(errors="replace")
                    assert part, out
                    out += part

        if act:
            await act(wait_for, process)
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal as EIO
            while part := await reader.read(4096):
                out += part.decode(errors="replace")
        assert await process.wait() == 0, out
    return out


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


@pytest.mark.parametrize(
    ("keys", "url"),
    [
        ({}, "http://127.0.0.1:9478"),
        ({"listen": "127.0.0.1:80"}, "http://127.0.0.1:80"),
        ({"listen": "10.1.2.3:80"}, "http://127.0.0.1:80"),
        ({"listen": "[::1]:80"}, "http://[::1]:80"),
        ({"listen": "0.0.0.0:9478", "status_listen": "0.0.0.0:9478"}, "http://127.0.0.1:9478"),
        ({"listen": "[::]:9478", "status_listen": "[::]:9478"}, "http://[::1]:9478"),
        ({"listen": "", "status_listen": "[fd00::1]:80"}, "http://[fd00::1]:80"),
    ],
)
def test_own_url_is_the_address_of_the_status(keys: dict[str, str], url: str, tmp_path: Path) -> None:
    """The addresses come from variables, from the file that a variable names, or are the default."""
    file = tmp_path / "c.yaml"
    file.write_text("version: v1\n" + "".join(f"{name}: '{value}'\n" for name, value in keys.items()))
    variables = {f"AOSP_PLUGIN_{name.upper()}": value for name, value in keys.items()}
    assert status.own_url(variables) == status.own_url({"AOSP_PLUGIN_CONFIG": str(file)}) == url


@pytest.mark.parametrize("key", ["listen", "status_listen"])
def test_plugin_that_does_not_serve_its_status_has_no_url(key: str) -> None:
    with pytest.raises(ServiceError, match=f"the plugin does not serve its status: {key} is empty"):
        status.own_url({f"AOSP_PLUGIN_{key.upper()}": ""})


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
    with http_serving(("127.0.0.1", 0), {"/status": lambda: answer}) as port, pytest.raises(ServiceError, match=error):
        status.fetch(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("path", ["/a/b", "/a/b/", "/a/b/status"])
def test_path_of_the_url_is_kept(path: str) -> None:
    """A proxy such as kubectl's serves the plugin below a path. The path of the report itself is accepted, too."""
    report = {"version": "1", "node": "n", "started": 1.0, "watching": "inotify"}
    body = json.dumps(report | {"allocations": {"known": True, "problem": ""}, "resources": []}).encode()
    with http_serving(("127.0.0.1", 0), {"/a/b/status": lambda: Answer("application/json", body)}) as port:
        assert status.fetch(f"http://127.0.0.1:{port}{path}").node == "n"
