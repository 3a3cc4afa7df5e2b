"""What a container needs for its nodes, in the kubelet's words and in those of a CDI spec.

Functions of nodes and of a policy: which nodes a device has is for ``backend`` to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.devices.edits import Policy, edits_for
from aosp_plugin.errors import InvalidRequestError
from aosp_plugin.framework.cdi import spec as cdi
from aosp_plugin.framework.device_list import CDI, DeviceList
from aosp_plugin.framework.edits import ContainerEdits, DeviceNode, Mount

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aosp_plugin.binder.devices.edits import Edits
    from aosp_plugin.binder.discovery.binder_device import BinderDevice


class AllocatedDevice(NamedTuple):
    """A device, and the nodes that a container gets with it."""

    id: str
    nodes: Sequence[BinderDevice]


class Responses:
    """Words for one resource."""

    def __init__(self, resource_name: str, policy: Policy, ways: frozenset[DeviceList], *, alone: bool) -> None:
        """``alone``: each node is a device of its own, so that a device's place in a container can't be foretold."""
        self._resource_name = resource_name
        self._ways = ways
        variable = policy.visible_devices_variable if DeviceList.ENVVAR in ways else ""
        self._policy = policy._replace(visible_devices_variable=variable)
        # Of two devices that set the same variable, or mount at the same path, a runtime lets the last one win.
        self._policy_of_one = policy._replace(
            visible_devices_variable="", container_paths=() if alone else policy.container_paths
        )

    @property
    def needs_spec(self) -> bool:
        """Whether containers are told names that are looked up in a CDI spec."""
        return not self._ways.isdisjoint(CDI)

    def for_container(self, devices: Sequence[AllocatedDevice], present: frozenset[str]) -> ContainerEdits:
        """Return the edits for a container with these ``devices``, in the order in which it gets them.

        ``present`` are the shared paths that exist. Raises InvalidRequestError where CDI can't have two of the
        devices in one container.
        """
        whole = edits_for([node for device in devices for node in device.nodes], self._policy, present)
        edits = ContainerEdits([], [], whole.environment)
        if self.needs_spec:
            edits = self._with_names(edits, devices)._replace(mounts=self._beyond_spec(devices, whole, present))
        if DeviceList.VOLUME_MOUNTS in self._ways:
            edits = edits._replace(
                devices=[DeviceNode(*device) for device in whole.devices],
                mounts=[Mount(*mount) for mount in whole.mounts],
            )
        return edits

    def spec(
        self, devices: Sequence[AllocatedDevice], present: frozenset[str], real: Callable[[str], str]
    ) -> bytes | None:
        """Return the text of the CDI spec of all ``devices``; None where there are none.

        ``real`` follows the links in a path of the host.
        """
        if not devices:
            return None
        described = [self._described(device, present, real) for device in devices]
        return cdi.encode(cdi.spec_of(self._resource_name, described))

    def _described(self, device: AllocatedDevice, present: frozenset[str], real: Callable[[str], str]) -> cdi.CdiDevice:
        own = edits_for(device.nodes, self._policy_of_one, present)
        return cdi.CdiDevice(
            device.id,
            ContainerEdits(
                [DeviceNode(real(node.host_path), node.container_path, node.permissions) for node in own.devices],
                [Mount(real(mount.host_path), mount.container_path, mount.read_only) for mount in own.mounts],
                own.environment,
            ),
        )

    def _with_names(self, edits: ContainerEdits, devices: Sequence[AllocatedDevice]) -> ContainerEdits:
        names = [cdi.qualified_name(self._resource_name, device.id) for device in devices]
        if DeviceList.CDI_CRI in self._ways:
            edits = edits._replace(cdi_devices=names)
        if DeviceList.CDI_ANNOTATIONS in self._ways:
            key, value = cdi.annotation(self._resource_name, names)
            edits = edits._replace(annotations={key: value})
        return edits

    def _beyond_spec(self, devices: Sequence[AllocatedDevice], whole: Edits, present: frozenset[str]) -> list[Mount]:
        """Return the mounts that no device has by itself: container paths of nodes that are devices of their own."""
        by_spec = [
            mount for device in devices for mount in edits_for(device.nodes, self._policy_of_one, present).mounts
        ]
        for mount in by_spec:
            if mount not in whole.mounts:
                names = ", ".join(device.id for device in devices)
                raise InvalidRequestError(
                    f"devices {names} can't be in one container by CDI: more than one has a mount at "
                    f"{mount.container_path}"
                )
        return [Mount(*mount) for mount in whole.mounts if mount not in by_spec]
