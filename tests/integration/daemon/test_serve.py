"""``aosp-plugin serve``: signals, reloads, probes, exit codes and errors."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from aosp_plugin.framework.service import http
from aosp_plugin.framework.service import process as service_process
from aosp_plugin.report.document import Known, ProcessReport, ReloadReport, Report
from kubelet_standin import Kubelet
from tests.support import (
    RESOURCE,
    DeviceDirectory,
    Serve,
    ServeHere,
    answered,
    free_port,
    http_get,
    http_serving,
    listed,
    run_command,
    sockets,
    usual_arguments,
)


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that writes a configuration file and returns its path."""

    def write(text: str) -> str:
        (tmp_path / "config.yaml").write_text(f"version: v1\n{text}\n")
        return str(tmp_path / "config.yaml")

    return write


def run_serve(devices: DeviceDirectory, kubelet_dir: str, *flags: str) -> tuple[int, str]:
    """Run the command in this process, which ends with an error; return its exit code and standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signal, "pthread_sigmask", lambda *_: None)
        patch.setattr(service_process, "stop_on_signals", lambda *_: None)
        code, _, err = run_command("serve", *usual_arguments(devices, kubelet_dir), *flags)
    return code, err


# -- stop and restart


async def test_signal_stops_the_plugin(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """The plugin ends the stream, removes its socket and exits with 0, also while clients do not read their answer."""
    device_directory.add(0)
    port = free_port()
    flags = ("--listen", f"127.0.0.1:{port}")
    async with Kubelet(kubelet_dir) as kubelet, Serve(device_directory, kubelet_dir, *flags) as serve:
        await listed(kubelet, 1)
        assert (await http_get(port, "/healthz"))[0] == 200
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            serve.signal(signal.SIGINT)
            assert await serve.finish() == 0
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).streams == 0)
        assert kubelet.resource(RESOURCE).last_stream_end == "EOF"
        assert sockets(kubelet_dir) == []


# -- reload


async def test_reload_applies_a_changed_configuration_and_prints_the_outcome(
    device_directory: DeviceDirectory, kubelet_dir: str, write_config: Callable[[str], str]
) -> None:
    """Each call has its own outcome."""
    device_directory.add(0, 1)
    address = f"127.0.0.1:{free_port()}"
    file = write_config(f"resource_name: {RESOURCE}")

    async def reload(keys: str) -> tuple[int, str, str]:
        write_config(f"{keys}\npod_resources_socket: ''")
        return await asyncio.to_thread(run_command, "reload", "--url", f"http://{address}")

    flags = ("--config", file, "--listen", address)
    async with Kubelet(kubelet_dir) as kubelet, Serve(device_directory, kubelet_dir, *flags):
        await listed(kubelet, 2)
        assert await reload("replicas: 2") == (0, "configuration reloaded\n", "")
        await listed(kubelet, 4)
        assert len(sockets(kubelet_dir)) == 1
        error = "configuration reload rejected: shared_devices: /usr is a directory, not a device: use shared_mounts"
        assert await reload("shared_devices: [/usr]") == (1, "", f"aosp-plugin: {error}\n")
        unchanged = "configuration unchanged, devices scanned again\n"
        assert await reload("replicas: 2") == (0, unchanged, "")


async def reported_process(on_signal: str, command: str, started: int = 0) -> tuple[asyncio.subprocess.Process, Report]:
    """Run a process that looks like a command of the plugin; return it, and a report of it.

    ``started`` is by how many ticks the report has an earlier start of the process.
    """
    waits = (sys.executable, "-c", "import signal; signal.pause()", "aosp-plugin", command)
    process = await asyncio.create_subprocess_exec("env", on_signal, *waits)
    found = ProcessReport.of(process.pid)
    assert found is not None
    named = ProcessReport(found.pid, found.start - started)
    return process, Report("1", "node", 1.0, Known(known=True, problem=""), (), process=named)


@pytest.mark.parametrize(
    ("started", "command", "error"),
    [
        (1, "serve", "is not visible here; run aosp-plugin reload in its pod"),
        (0, "status", "is not visible here"),
        (0, "serve", "the plugin ended during the reload"),
    ],
)
async def test_reload_signals_no_process_but_the_plugin(started: int, command: str, error: str) -> None:
    """Behind a forwarded port is a process of another host: the one with its ID here started at another time.

    Whatever else answers may name any process of this host, which is no plugin.
    """
    process, report = await reported_process("--default-signal=HUP", command, started)
    answer = http.Answer("application/json", msgspec.json.encode(report))
    with http_serving(("127.0.0.1", 0), {"/status": lambda: answer}) as port:
        code, out, err = await asyncio.to_thread(run_command, "reload", "--url", f"http://127.0.0.1:{port}")
    assert (code, out) == (1, "")
    assert error in err
    signalled = error.startswith("the plugin ended")
    if not signalled:
        process.kill()
    assert await process.wait() == -(signal.SIGHUP if signalled else signal.SIGKILL)


async def test_the_outcome_of_a_reload_is_not_that_of_the_one_before() -> None:
    """The process may answer again before it has begun to reload."""
    process, report = await reported_process("--ignore-signal=HUP", "serve")
    former = ReloadReport(time.time(), changed=False, error="of the reload before")
    fetched: list[float] = []

    def status() -> http.Answer:
        fetched.append(time.time())
        outcome = former if len(fetched) < 4 else ReloadReport(fetched[-1], changed=True, error="")
        content = msgspec.json.encode(msgspec.structs.replace(report, last_reload=outcome))
        return http.Answer("application/json", content)

    with http_serving(("127.0.0.1", 0), {"/status": status}) as port:
        printed = await asyncio.to_thread(run_command, "reload", "--url", f"http://127.0.0.1:{port}")
    process.kill()
    await process.wait()
    assert (printed, len(fetched)) == ((0, "configuration reloaded\n", ""), 4)


# -- probes, logs and errors


async def test_process_serves_page_status_and_metrics(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """/readyz fails while the plugin is not registered; /healthz does not."""
    device_directory.add(0, 1)
    port = free_port()
    async with ServeHere(device_directory, kubelet_dir, "--listen", f"127.0.0.1:{port}"):
        assert (await answered(port, "/readyz", "waiting for kubelet"))[0] == 503
        assert (await http_get(port, "/healthz"))[::2] == (200, "ok\n")
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 2)
            assert (await answered(port, "/readyz", "ok: aosp.io/binder: "))[0] == 200
            _, _, metrics = await http_get(port, "/metrics")
            assert f'aosp_plugin_devices{{health="healthy",reason="",resource="{RESOURCE}"}} 2.0' in metrics
            assert f'aosp_plugin_registered{{resource="{RESOURCE}"}} 1.0' in metrics
            assert "\naosp_plugin_polling 0.0" in metrics
        types = {"/": "text/html", "/metrics": "text/plain; version=0.0.4", "/status": "application/json"}
        for path, content_type in types.items():
            status, head, _ = await http_get(port, path)
            assert (status, f"Content-Type: {content_type}" in head) == (200, True)
        assert (await answered(port, "/readyz", "registration failed"))[0] == 503
        assert (await http_get(port, "/healthz"))[0] == 200
        assert f'aosp_plugin_registered{{resource="{RESOURCE}"}} 0.0' in (await http_get(port, "/metrics"))[2]


@pytest.mark.parametrize(
    ("missing_device_ttl", "said"), [("300", "none of 2 devices is healthy"), ("0.1", "no devices")]
)
async def test_readiness_says_that_no_device_is_healthy(
    device_directory: DeviceDirectory, kubelet: Kubelet, missing_device_ttl: str, said: str
) -> None:
    """It does not fail: a node may have none, a rollout goes on, and a restart would bring none back.

    A missing device is dropped at its time, for which there is no event.
    """
    port = free_port()
    environment = {"AOSP_PLUGIN_MISSING_DEVICE_TTL": missing_device_ttl}
    flags = ("--listen", f"127.0.0.1:{port}")
    async with Serve(device_directory, kubelet.directory, *flags, environment=environment):
        assert (await answered(port, "/readyz", f"ok: {RESOURCE}: no devices\n"))[0] == 200
        device_directory.add(0, 1)
        await listed(kubelet, 2)
        device_directory.remove(0, 1)
        assert (await answered(port, "/readyz", f"ok: {RESOURCE}: {said}\n"))[0] == 200


async def test_page_and_status_are_not_at_the_address_of_metrics_and_probes(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    """Other pods reach the latter: names of pods are not answered to them."""
    public, private = free_port(), free_port()
    flags = ("--listen", f"127.0.0.1:{public}", "--status-listen", f"127.0.0.1:{private}")
    async with Kubelet(kubelet_dir), ServeHere(device_directory, kubelet_dir, *flags):
        await answered(public, "/readyz", "ok: ")
        for path in ("/metrics", "/healthz", "/readyz"):
            assert (await http_get(public, path))[0] == 200
        for path in ("/", "/status", "/page/main.js"):
            assert (await http_get(public, path))[0] == 404
            assert (await http_get(private, path))[0] == 200


@pytest.mark.parametrize(
    ("flags", "code", "error"),
    [
        (["--verify", "much"], 2, "flag --verify: 'much' is not allowed; allowed: file, char, binder, probe"),
        (["--device-dir", "/nowhere"], 1, "cannot read the device directory /nowhere: "),
        (["--kubelet-dir", "/nowhere"], 1, "the kubelet's plugin directory /nowhere does not exist"),
    ],
)
def test_error_at_startup_is_one_line(
    device_directory: DeviceDirectory,
    kubelet_dir: str,
    flags: list[str],
    code: int,
    error: str,
) -> None:
    """The exit code is 2 for usage and configuration, and 1 for the host."""
    found, log = run_serve(device_directory, kubelet_dir, *flags)
    (line,) = [line for line in log.splitlines() if line.startswith("aosp-plugin: ")]
    assert error in line
    assert (found, "Traceback" in log) == (code, False)


def test_binder_device_of_two_resources_through_a_link_is_an_error(
    device_directory: DeviceDirectory, kubelet_dir: str, write_config: Callable[[str], str]
) -> None:
    device_directory.add(4)
    link = device_directory.directory / "sidecar_binder7"
    link.symlink_to("aosp_binder4")
    sidecar = "{resource_name: aosp.io/sidecar, device_prefix: sidecar_binder}"
    file = write_config(f"resources: [{{resource_name: aosp.io/phone}}, {sidecar}]")
    code, log = run_serve(device_directory, kubelet_dir, "--config", file)
    assert f"{link} ({device_directory.directory}/aosp_binder4 of aosp.io/phone)" in log
    assert "belongs to both aosp.io/phone and aosp.io/sidecar" in log
    assert code == 2
