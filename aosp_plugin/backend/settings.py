"""What the operator decided about the nodes of one resource, in binder's own terms.

Where the values come from, and what they are by default, is the business of ``config``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices.edits import Policy
from aosp_plugin.binder.devices.numa import NumaMap
from aosp_plugin.binder.devices.sets import Layout, Single
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.framework.cdi import spec as cdi
from aosp_plugin.framework.device_list import DeviceList

if TYPE_CHECKING:
    from aosp_plugin.binder.provision.provisioner import ProvisionSpec


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One resource."""

    resource_name: str
    directory: str
    """The device directory, as the host has it."""
    prefix: str
    """What the nodes' names begin with; not asked of nodes that the layout finds by a pattern."""
    verify: Verify = Verify.CHAR
    missing_device_ttl: float = 300.0
    """Seconds."""
    policy: Policy = field(default_factory=Policy)
    layout: Layout = field(default_factory=Single)
    replicas: int = 1
    numa: NumaMap = field(default_factory=NumaMap)
    ways: frozenset[DeviceList] = frozenset({DeviceList.ENVVAR, DeviceList.VOLUME_MOUNTS})
    keep: ProvisionSpec | None = None
    """Nodes that are made, and made again."""
    renew: bool = False
    """Whether a container's nodes are made anew before it starts."""
    cdi_directory: str = cdi.DIRECTORY
    """As the host has it."""
