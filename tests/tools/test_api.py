"""The generated protocol modules match the .proto files and the kubelet's wire format."""

from pathlib import Path

import pytest
from google.protobuf.message import Message

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import dra_health_pb2 as health
from aosp_plugin.framework.api import dra_pb2 as dra
from aosp_plugin.framework.api import pluginregistration_pb2 as registration
from hack.proto import ROOT, generate, modules
from kubelet_standin.api import deviceplugin_pb2 as standin


def test_the_generated_modules_are_current(tmp_path: Path) -> None:
    """After a change to a .proto file, run ``make proto``."""
    generated = generate(tmp_path)
    assert generated == modules(ROOT)
    assert [path for path in generated if (tmp_path / path).read_text() != (ROOT / path).read_text()] == []


def test_a_process_can_use_the_messages_of_the_plugin_and_of_the_stand_in_kubelet() -> None:
    """Their names differ; the bytes are the same."""
    of_plugin = pb.RegisterRequest(version="v1beta1", endpoint="a.sock", resource_name="example.com/a")
    of_standin = standin.RegisterRequest.FromString(of_plugin.SerializeToString())
    assert of_standin.resource_name == "example.com/a"
    assert of_standin.DESCRIPTOR.full_name != of_plugin.DESCRIPTOR.full_name


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
        (
            registration.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["a", "b"]),
            b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01a\x22\x01b",
        ),
        (registration.RegistrationStatus(plugin_registered=True, error="e"), b"\x08\x01\x12\x01e"),
        (
            dra.NodePrepareResourcesRequest(claims=[dra.Claim(namespace="s", uid="u", name="n")]),
            b"\x0a\x09\x0a\x01s\x12\x01u\x1a\x01n",
        ),
        (
            dra.NodePrepareResourceResponse(
                devices=[
                    dra.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s")
                ],
                error="e",
            ),
            b"\x0a\x0f\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s\x12\x01e",
        ),
        (
            dra.NodePrepareResourcesResponse(claims={"u": dra.NodePrepareResourceResponse(error="e")}),
            b"\x0a\x08\x0a\x01u\x12\x03\x12\x01e",
        ),
        (
            dra.NodeUnprepareResourcesResponse(claims={"u": dra.NodeUnprepareResourceResponse(error="e")}),
            b"\x0a\x08\x0a\x01u\x12\x03\x0a\x01e",
        ),
        (
            health.NodeWatchResourcesResponse(
                devices=[
                    health.DeviceHealth(
                        device=health.DeviceIdentifier(pool_name="p", device_name="d"),
                        health=health.UNHEALTHY,
                        last_updated_time=3,
                        health_check_timeout_seconds=4,
                        message="m",
                    )
                ]
            ),
            b"\x0a\x11\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x03\x20\x04\x2a\x01m",
        ),
    ],
)
def test_a_message_has_the_wire_format_of_the_kubelet(message: Message, encoded: bytes) -> None:
    """Field numbers and types are those of the kubelet's .proto files, cdi_devices included."""
    assert message.SerializeToString(deterministic=True) == encoded
