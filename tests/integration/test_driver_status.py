"""What ``aosp-plugin status`` prints of a resource that is served by a DRA driver, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
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
from tests.support import PATIENCE, free_port

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
