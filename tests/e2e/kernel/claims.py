"""Phones for ResourceClaims, without a kubelet: the backend, and what a container gets from it."""

from typing import Any

from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Phones, Resource
from aosp_plugin.config.values import Api
from kubelet_standin import ContainerAllocation
from kubelet_standin.deviceplugin import pods as given
from tests.backends import Served
from tests.e2e.kernel.phones import RESOURCE


def backend(**keys: Any) -> Served:
    """Return the backend of a process that has just started, with further keys of its resource."""
    resource = Resource.of(phones=Phones(count=2), api=Api.DRA, **{"shared_devices": (), **keys})
    started = Served(ClaimsBackend(Host(), resource, cdi_dir="/run/cdi"))
    started.scan()
    started.update_host()
    return started


def container(prepared: Served, *ids: str) -> ContainerAllocation:
    """Return what a container gets with these phones, as a request of one claim each."""
    edits = [part for device_id in ids for part in prepared.prepare([device_id], [])]
    return ContainerAllocation(
        name="android",
        device_ids={RESOURCE: ids},
        envs={name: value for part in edits for name, value in part.environment.items()},
        mounts=tuple(given.Mount(m.container_path, m.host_path, m.read_only) for part in edits for m in part.mounts),
        devices=tuple(
            given.DeviceSpec(node.container_path, node.host_path, node.permissions)
            for part in edits
            for node in part.devices
        ),
        annotations={},
        cdi_devices=(),
    )
