"""What ``aosp-plugin status`` prints of a resource that is served by a DRA driver."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml

from aosp_plugin.cli import status
from aosp_plugin.cli.summary import summary
from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.dra import driver_names
from kubelet_standin.apiserver import ApiServer
from kubelet_standin.dra_kubelet import DraKubelet
from tests.dra_drivers import FAST_KUBELET
from tests.support import DeviceDirectory, ServeHere, free_port

RESOURCE = "aosp.io/binder"
DRIVER = driver_names.driver_name(RESOURCE)


async def test_status_reports_the_registration_and_the_slices_of_a_driver(short_directory: Path) -> None:
    port = free_port()
    devices = DeviceDirectory(short_directory / "dev")
    devices.add(0)
    (short_directory / "account").mkdir()
    config = {
        "version": "v1",
        "api": "dra",
        "device_dir": str(devices.directory),
        "kubelet_dir": str(short_directory / "device-plugins"),
        "cdi_dir": str(short_directory / "cdi"),
        "service_account_dir": str(short_directory / "account"),
        "pod_resources_socket": str(short_directory / "pod-resources.sock"),
        "shared_devices": [],
        "verify": "file",
        "listen": f"127.0.0.1:{port}",
    }
    file = short_directory / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    async with ApiServer(tls=True) as server, DraKubelet(short_directory / "plugins_registry", timings=FAST_KUBELET):
        server.objects.create(protocol.NODES, {"metadata": {"name": "worker"}})
        server.write_service_account(str(short_directory / "account"))
        environment = {**server.environment, "NODE_NAME": "worker"}
        async with ServeHere(devices, "", f"--config={file}", environment=environment, usual_flags=False) as serve:
            await serve.logged("ResourceSlices published")
            report = await asyncio.to_thread(status.fetch, f"http://127.0.0.1:{port}")
    assert report.resources[0].registered
    lines = [line.text for line in summary(report)]
    expected = f"as DRA driver {DRIVER}, with 1 of 1 ResourceSlices and 0 prepared claims"
    assert any(line.startswith(f"{RESOURCE}: registered with the kubelet for") and expected in line for line in lines)
