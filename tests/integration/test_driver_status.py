"""What ``aosp-plugin status`` prints of a resource that is served by a DRA driver, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from aosp_plugin.cli import status
from aosp_plugin.cli.summary import summary
from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.dra import driver_names
from kubelet_standin.apiserver import ApiServer
from kubelet_standin.dra_kubelet import DraKubelet
from tests.support import PATIENCE, free_port, http_get

RESOURCE = "aosp.io/binder"
DRIVER = driver_names.driver_name(RESOURCE)


@contextlib.asynccontextmanager
async def serving(short_directory: Path, port: int) -> AsyncIterator[DraKubelet]:
    """Run ``serve`` for one device with a stand-in kubelet, inside the context, from when the slices exist."""
    (short_directory / "dev").mkdir()
    (short_directory / "dev" / "aosp_binder0").touch()
    (short_directory / "account").mkdir()
    config = {
        "version": "v1",
        "api": "dra",
        "device_dir": str(short_directory / "dev"),
        "kubelet_dir": str(short_directory / "device-plugins"),
        "cdi_dir": str(short_directory / "cdi"),
        "service_account_dir": str(short_directory / "account"),
        "pod_resources_socket": str(short_directory / "pod-resources.sock"),
        "shared_devices": [],
        "verify": "file",
        "listen": f"127.0.0.1:{port}",
    }
    (short_directory / "config.yaml").write_text(yaml.safe_dump(config))
    async with ApiServer(tls=True) as server, DraKubelet(short_directory / "plugins_registry") as kubelet:
        server.objects.create(protocol.NODES, {"metadata": {"name": "worker"}})
        server.write_service_account(str(short_directory / "account"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aosp_plugin", "serve", "--config", str(short_directory / "config.yaml")),
            env={**os.environ, **server.environment, "NODE_NAME": "worker"},
        )
        try:
            await kubelet.wait_for(lambda each: each.connected(DRIVER))
            await server.wait_for(lambda each: each.objects.list(protocol.RESOURCE_SLICES))
            yield kubelet
        finally:
            process.terminate()
            await process.wait()


async def test_status_reports_the_registration_and_the_slices_of_a_driver(short_directory: Path) -> None:
    port = free_port()
    async with serving(short_directory, port), asyncio.timeout(PATIENCE):
        report = await asyncio.to_thread(status.fetch, f"http://127.0.0.1:{port}")
        while (driver := report.resources[0].driver) is None or not driver.slices_confirmed:
            report = await asyncio.to_thread(status.fetch, f"http://127.0.0.1:{port}")
    assert report.resources[0].registered
    lines = [line.text for line in summary(report)]
    expected = f"as DRA driver {DRIVER}, with 1 of 1 ResourceSlices and 0 prepared claims"
    assert any(line.startswith(f"{RESOURCE}: registered with the kubelet for") and expected in line for line in lines)


async def readiness(port: int, expected: int, text: str) -> None:
    """Wait until /readyz answers with this status and a reason that contains ``text``."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer, _, body = await http_get(port, "/readyz")
            if (answer, text in body) == (expected, True):
                return


def checked(listener: socket.socket) -> None:
    """Wait until the driver has checked whether the kubelet listens: it connects, and sends nothing."""
    listener.settimeout(PATIENCE)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE)
            if connection.recv(1) == b"":
                return


async def registered_metric(port: int) -> str:
    """Return the line of the metric ``registered``."""
    _, _, body = await http_get(port, "/metrics")
    return next(line for line in body.splitlines() if line.startswith("aosp_plugin_registered{"))


async def test_readiness_falls_with_a_killed_kubelet_and_returns_with_it(short_directory: Path) -> None:
    """The kubelet leaves the socket of its podresources API behind."""
    port, path = free_port(), str(short_directory / "pod-resources.sock")
    with socket.socket(socket.AF_UNIX) as pod_resources:
        pod_resources.bind(path)
        pod_resources.listen()
        async with serving(short_directory, port) as kubelet:
            await readiness(port, 200, "1 ResourceSlices")
            assert (await registered_metric(port)).endswith(" 1.0")
            await asyncio.to_thread(checked, pod_resources)
            await kubelet.stop()
            pod_resources.close()
            await readiness(port, 503, f"waiting for kubelet: it does not listen on {path}")
            assert (await registered_metric(port)).endswith(" 0.0")
            os.unlink(path)
            with socket.socket(socket.AF_UNIX) as restarted:
                restarted.bind(path)
                restarted.listen()
                await kubelet.start()
                await readiness(port, 200, "1 ResourceSlices")
                assert (await registered_metric(port)).endswith(" 1.0")
