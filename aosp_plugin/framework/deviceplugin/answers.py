"""ContainerEdits encoded as the kubelet's ContainerAllocateResponse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.framework.api import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    from aosp_plugin.framework.edits import ContainerEdits


def container_response(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    """Return the response for one container of an Allocate request."""
    return pb.ContainerAllocateResponse(
        envs=edits.environment,
        mounts=[pb.Mount(**mount._asdict()) for mount in edits.mounts],
        devices=[pb.DeviceSpec(**device._asdict()) for device in edits.devices],
        annotations=edits.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )
