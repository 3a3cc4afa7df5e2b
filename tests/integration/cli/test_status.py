"""``aosp-plugin status``: prints the status report of a running plugin."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from aosp_plugin.cli import status
from aosp_plugin.framework.errors import ConfigError
from kubelet_standin import Container, Kubelet, Pod, PodResources
from tests.support import (
    RESOURCE,
    DeviceDirectory,
    ServeHere,
    answered,
    free_port,
    listed,
    run_command,
)

PHONE = Pod("phone-1", [Container("android", {RESOURCE: 2})])


class Node(NamedTuple):
    """A running plugin and its kubelet."""

    port: int
    url: str
    kubelet: Kubelet
    device_directory: DeviceDirectory
    serve: ServeHere


@pytest.fixture
async def node(device_directory: DeviceDirectory, kubelet_dir: str) -> AsyncIterator[Node]:
    """Run ``aosp-plugin serve`` with three binder devices, and a pod that has two of them."""
    device_directory.add(0, 1, 2)
    port = free_port()
    address = f"127.0.0.1:{port}"
    path = os.path.join(kubelet_dir, "pod-resources.sock")
    environment = {
        "AOSP_PLUGIN_POD_RESOURCES_SOCKET": path,
        "NODE_NAME": "node-7",
    }
    async with (
        Kubelet(kubelet_dir) as kubelet,
        PodResources(kubelet, path, {"phone-1": "games"}),
        ServeHere(device_directory, kubelet_dir, "--listen", address, environment=environment) as serve,
    ):
        await listed(kubelet, 3)
        await answered(port, "/readyz", "ok: ")
        await kubelet.admit(PHONE)
        await answered(port, "/status", '"allocations":{"known":true')  # a kubelet that is busy is asked again in 10 s
        yield Node(port, f"http://{address}", kubelet, device_directory, serve)


async def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run the command in this process, and return its exit code and what it printed."""
    return await asyncio.to_thread(run_command, "status", *arguments, environment=environment)


async def test_status_and_metrics_have_allocations_problems_and_log(node: Node) -> None:
    node.device_directory.remove(2)
    await listed(node.kubelet, 2)
    await answered(node.port, "/metrics", f'aosp_plugin_devices_allocated{{resource="{RESOURCE}"}} 2.0')
    report = await asyncio.to_thread(status.fetch, node.url)
    assert (report.allocations.known, report.resources[0].counts.allocated) == (True, 2)
    assert [problem.kind for problem in report.problems] == ["missing"]
    record = next(each for each in report.log if each.message == "devices changed")
    assert record.fields["changed"] == "aosp_binder2:missing"
    assert report.problems[0].since is not None
    assert record.time >= report.problems[0].since - 1


# aosp-plugin status


async def test_check_exits_with_3_if_there_are_problems(node: Node) -> None:
    """It does not combine with the other ways of printing."""
    assert await run("--url", node.url, "--check") == (0, "", "")
    node.device_directory.remove(1, 2)
    await listed(node.kubelet, 1)
    code, out, err = await run("--url", node.url, "--check")
    assert (code, err) == (3, "")
    assert re.sub(r"\d+s", "0s", out) == (
        f"warning: {RESOURCE}: 2 devices missing: the file does not exist (for 0s): aosp_binder1, aosp_binder2\n"
    )
    assert (await run("--url", node.url, "--check", "--resource", "x.io/y"))[0] == 2
    assert (await run("--url", node.url, "--check", "--json"))[0] == 2
    assert (await run("--check", "--url", "http://127.0.0.1:1"))[0] == 1


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
