"""``aosp-plugin serve`` as a process: its signals, its exit codes, and what it says to whoever started it wrongly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.config import Config
from aosp_plugin.daemon import serve as serving
from aosp_plugin.testing import Container, Kubelet, Pod
from tests.support import PATIENCE, RESOURCE, Nodes, Serve, free_port, listed, sockets

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it(nodes: Nodes, kubelet_dir: str, number: signal.Signals) -> None:
    """SIGTERM and SIGINT end the stream, remove the socket and exit with 0."""
    nodes.make(0)
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir) as serve:
        await listed(kubelet, 1)
        serve.signal(number)
        assert await serve.finish() == 0
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).streams == 0)
        assert kubelet.resource(RESOURCE).last_stream_end == "EOF", "ended by the plugin, not cut off with its server"
        assert sockets(kubelet_dir) == []


async def test_sigterm_while_the_kubelet_is_away(nodes: Nodes, kubelet_dir: str) -> None:
    """A plugin that waits for its kubelet ends as promptly and with 0."""
    async with Serve(nodes, kubelet_dir) as serve:
        await serve.logged("waiting for the kubelet")
        serve.signal(signal.SIGTERM)
        assert await serve.finish() == 0


async def test_an_end_that_hangs_is_cut_short(nodes: Nodes, kubelet_dir: str, tmp_path: Path) -> None:
    """Whatever keeps the process after SIGTERM, it ends, and with 0."""
    (tmp_path / "sitecustomize.py").write_text("import atexit, time\natexit.register(time.sleep, 3600)\n")
    async with Serve(nodes, kubelet_dir, environment={"PYTHONPATH": str(tmp_path)}) as serve:
        await serve.logged("waiting for the kubelet")
        serve.signal(signal.SIGTERM)
        assert await serve.finish() == 0


async def test_killed_and_started_again(nodes: Nodes, kubelet_dir: str) -> None:
    """After SIGKILL a new process has the devices back, under a new socket, with the old one swept."""
    nodes.make(0, 1)
    async with Kubelet(kubelet_dir) as kubelet:
        async with Serve(nodes, kubelet_dir) as serve:
            await listed(kubelet, 2)
            pod = Pod("phone", [Container("android", {RESOURCE: 1})])
            admitted = await kubelet.admit(pod)
            serve.signal(signal.SIGKILL)
            await serve.finish()
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 0)
        (left,) = sockets(kubelet_dir)
        async with Serve(nodes, kubelet_dir):
            await listed(kubelet, 2)
            assert left not in sockets(kubelet_dir)
            assert await kubelet.admit(pod) == admitted


async def test_sighup_takes_a_new_configuration(nodes: Nodes, kubelet_dir: str, tmp_path: Path) -> None:
    """SIGHUP reads the file again, and what it says holds from then on."""
    nodes.make(0, 1)
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nresource_name: aosp.io/binder\n")
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir, "--config", str(file)) as serve:
        await listed(kubelet, 2)
        file.write_text("version: v1\nresource_name: example.com/other\n")
        serve.signal(signal.SIGHUP)
        await listed(kubelet, 2, "example.com/other")
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 0)
        assert len(sockets(kubelet_dir)) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("resource_name: nonsense", "resource_name: 'nonsense' is not allowed"),
        ("kubelet_dir: /nowhere", "the kubelet's plugin directory /nowhere does not exist"),
        ("host_root: /nowhere", "the device directory "),
    ],
)
async def test_sighup_refuses_a_bad_configuration(
    nodes: Nodes, kubelet_dir: str, tmp_path: Path, text: str, complaint: str
) -> None:
    """A configuration that is wrong, or could not be served, is refused with an error; the old one goes on."""
    nodes.make(0)
    file = tmp_path / "config.yaml"
    file.write_text(f"version: v1\nkubelet_dir: {kubelet_dir}\n")
    command = [sys.executable, "-m", "aosp_plugin", "serve", "--config", str(file), "--listen", ""]
    flags = ["--device-dir", str(nodes.directory), "--verify", "file"]
    async with Kubelet(kubelet_dir) as kubelet:
        process = await asyncio.create_subprocess_exec(*command, *flags, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        try:
            await listed(kubelet, 1)
            file.write_text(
                f"version: v1\nkubelet_dir: {kubelet_dir}\n{text}\n"
            )  # of two equal keys the last one holds
            process.send_signal(signal.SIGHUP)
            line = ""
            while "rejected" not in line:
                line = (await asyncio.wait_for(process.stderr.readline(), PATIENCE)).decode()
                assert line, "it ended"
            assert complaint in line
            nodes.make(1)
            await listed(kubelet, 2)
            assert len(kubelet.registrations) == 1
        finally:
            process.terminate()
            await process.communicate()


async def test_sighup_with_nothing_new(nodes: Nodes, kubelet_dir: str) -> None:
    """A configuration that reads as before costs no registration."""
    nodes.make(0)
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir) as serve:
        await listed(kubelet, 1)
        serve.signal(signal.SIGHUP)
        assert "changed=False" in await serve.logged("configuration reloaded")
        nodes.make(1)
        await listed(kubelet, 2)
        assert len(kubelet.registrations) == 1


async def test_a_host_that_can_not_be_looked_at_refuses_a_configuration(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a wrong one is refused: a disk that fails or descriptors that are used up must not end what is served."""

    def check(_following: Config) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(serving, "check", check)
    assert await serving._reload(Config(), lambda: Config(log_level="debug")) is None
    assert "configuration reload rejected" in caplog.text


@pytest.mark.skipif(
    os.stat("/dev/shm").st_dev == os.stat("/tmp").st_dev, reason="needs two file systems that anyone may write to"
)
async def test_sighup_takes_replaced_nodes_for_good(nodes: Nodes, kubelet_dir: str, tmp_path: Path) -> None:
    """A node on another file system than before is Unhealthy until a SIGHUP that is not refused says it is right."""
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\n")
    link = nodes.directory / "aosp_binder0"
    (tmp_path / "node").touch()
    link.symlink_to(tmp_path / "node")
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir, "--config", str(file)) as serve:
        await listed(kubelet, 1)
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as elsewhere:
            (nodes.directory / "new").symlink_to(elsewhere.name)
            (nodes.directory / "new").rename(link)
            await listed(kubelet, 0)
            assert "healthy=0 unhealthy=replaced:1" in await serve.logged("revision=2")
            file.write_text("version: v2\n")
            serve.signal(signal.SIGHUP)
            await serve.logged("rejected")
            (nodes.directory / "aosp_binder1").touch()
            await listed(kubelet, 1)
            assert kubelet.resource(RESOURCE).devices["aosp_binder0"] == "Unhealthy"
            file.write_text("version: v1\n")
            serve.signal(signal.SIGHUP)
            await listed(kubelet, 2)


async def test_probes_over_http(nodes: Nodes, kubelet_dir: str) -> None:
    """/readyz says why the plugin is not registered yet, and is well once it is; /healthz is well all along."""
    port = free_port()
    async with Serve(nodes, kubelet_dir, "--listen", f"127.0.0.1:{port}") as serve:
        await serve.logged("waiting for the kubelet")
        assert await get(port, "/healthz") == (200, "ok\n")
        status, text = await get(port, "/readyz")
        assert status == 503
        assert "there is no" in text
        async with Kubelet(kubelet_dir):
            await serve.logged("registered")
            assert await get(port, "/readyz") == (200, "ok\n")


async def test_json_logs(nodes: Nodes, kubelet_dir: str) -> None:
    """With --log-format json each line of the log is an object with the event's own keys."""
    nodes.make(0)
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir, "--log-format", "json") as serve:
        entry = json.loads(await serve.logged('"registered"'))
        assert (entry["level"], entry["resource"]) == ("info", RESOURCE)
        assert entry["endpoint"] == kubelet.registrations[-1].endpoint


@pytest.mark.parametrize(
    ("flags", "environment", "code", "complaint"),
    [
        (["--verify", "much"], {}, 2, "flag --verify: 'much' is not allowed; allowed: file, char, binder, probe"),
        (["--colour"], {}, 2, "No such option"),
        (["--config", "/nowhere.yaml"], {}, 2, "file /nowhere.yaml cannot be read: No such file or directory"),
        ([], {"AOSP_PLUGIN_ISOLATION": "some"}, 2, "variable AOSP_PLUGIN_ISOLATION: 'some' is not allowed"),
        (["--device-dir", "/nowhere"], {}, 1, "the device directory /nowhere can't be read"),
        (["--kubelet-dir", "/nowhere"], {}, 1, "the kubelet's plugin directory /nowhere does not exist"),
        (["--require-devices"], {}, 1, "no device of aosp.io/binder "),
        (["--listen", "192.0.2.1:1"], {}, 1, "cannot listen on 192.0.2.1:1"),
    ],
)
async def test_what_is_wrong_is_said_in_one_line(
    nodes: Nodes, kubelet_dir: str, flags: list[str], environment: dict[str, str], code: int, complaint: str
) -> None:
    """A user's mistake gives one line that names it, no traceback, and 2 for usage or 1 for the host."""
    async with Serve(nodes, kubelet_dir, *flags, environment=environment) as serve:
        assert await serve.finish() == code
    lines = [line for line in "".join(serve.log).splitlines() if line.startswith("aosp-plugin: ")]
    assert len(lines) == 1
    assert complaint in lines[0]
    assert "Traceback" not in "".join(serve.log)


async def test_a_refusal_that_can_not_heal_exits_with_1(nodes: Nodes, kubelet_dir: str) -> None:
    """A kubelet that will never take the resource ends the process with 1 and the kubelet's words."""
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse_register = 'the ResourceName "aosp.io/binder" is invalid'
        async with Serve(nodes, kubelet_dir) as serve:
            assert await serve.finish() == 1
    assert 'the ResourceName "aosp.io/binder" is invalid' in "".join(serve.log)


async def test_stopped_and_continued(nodes: Nodes, kubelet_dir: str) -> None:
    """A process that was frozen while nodes came and its kubelet restarted catches up when it goes on."""
    nodes.make(0)
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir) as serve:
        await listed(kubelet, 1)
        serve.signal(signal.SIGSTOP)
        nodes.make(1, 2)
        await kubelet.restart()
        serve.signal(signal.SIGCONT)
        await listed(kubelet, 3)


async def get(port: int, path: str) -> tuple[int, str]:
    """Ask for a path over HTTP, and return status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE)).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_the_socket_is_for_the_owner_alone(nodes: Nodes, kubelet_dir: str) -> None:
    """Nobody but the plugin's own user, who is the kubelet's, may talk to its socket."""
    nodes.make(0)
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir):
        await listed(kubelet, 1)
        (name,) = sockets(kubelet_dir)
        assert os.stat(os.path.join(kubelet_dir, name)).st_mode & 0o077 == 0
