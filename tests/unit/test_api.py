"""The generated protocol modules match the .proto files and the kubelet's wire format."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aosp_plugin.framework.api import deviceplugin_pb2 as pb

ROOT = Path(__file__).parents[2]
API = Path("aosp_plugin/framework/api")


@pytest.mark.parametrize("name", ["deviceplugin", "podresources"])
def test_the_generated_modules_are_current(tmp_path: Path, name: str) -> None:
    """After a change to a .proto file, run ``make proto``."""
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, f"{API / name}.proto"]
    subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603
    for path in (API / f"{name}_pb2.py", API / f"{name}_pb2_grpc.py"):
        assert (tmp_path / path).read_text() == (ROOT / path).read_text()


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (
            pb.RegisterRequest(version="v", endpoint="e", resource_name="r", options=pb.DevicePluginOptions()),
            b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x00",
        ),
        (pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True), b"\x08\x01\x10\x01"),
        (
            pb.Device(ID="d", health="h", topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=2)])),
            b"\x0a\x01d\x12\x01h\x1a\x04\x0a\x02\x08\x02",
        ),
        (
            pb.ContainerAllocateResponse(
                envs={"k": "v"},
                mounts=[pb.Mount(container_path="c", host_path="h", read_only=True)],
                devices=[pb.DeviceSpec(container_path="c", host_path="h", permissions="p")],
                annotations={"k": "v"},
                cdi_devices=[pb.CDIDevice(name="n")],
            ),
            (
                b"\x0a\x06\x0a\x01k\x12\x01v\x12\x08\x0a\x01c\x12\x01h\x18\x01\x1a\x09\x0a\x01c\x12\x01h\x1a\x01p"
                b"\x22\x06\x0a\x01k\x12\x01v\x2a\x03\x0a\x01n"
            ),
        ),
        (
            pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=["a"], must_include_deviceIDs=["m"], allocation_size=3
            ),
            b"\x0a\x01a\x12\x01m\x18\x03",
        ),
        (pb.PreStartContainerRequest(devices_ids=["d"]), b"\x0a\x01d"),
    ],
)
def test_a_message_has_the_wire_format_of_the_kubelet(message: pb.Device, encoded: bytes) -> None:
    """Field numbers and types are those of v1beta1 api.proto in the kubelet, cdi_devices included."""
    assert message.SerializeToString(deterministic=True) == encoded
