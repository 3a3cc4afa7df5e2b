"""Provisions once what a resource orders, for ``aosp-plugin provision``.

Everything that exists already is kept, so a further call changes nothing. Surplus phones are kept too: only the kubelet
knows whether pods have them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from aosp_plugin.backend import parts
from aosp_plugin.binder.devices.phones import phone_id
from aosp_plugin.binder.errors import HostError
from aosp_plugin.binder.provision.phones import PhoneProvisioner
from aosp_plugin.config import Api, ProvisionedBy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.config import Resource


class Provisioned(NamedTuple):
    """What is there for a resource after its provisioning."""

    ordered: int
    """The number of phones or binder devices in the configuration."""
    added: int
    """How many of them were mounted or created, or had another mode."""
    obstacles: Mapping[str, HostError]
    """Why single phones could not be mounted: something else is in their place. The plugin reports them."""


def provision(host: Host, resource: Resource) -> Provisioned | None:
    """Mount the phones and create the binder devices that a resource orders. Return None if it orders none.

    Under DRA, phones are mounted when claims are prepared. Raises HostError if something general is in the way, such as
    a kernel without binderfs or a missing right, or if all phones have obstacles.
    """
    if resource.phones is not None:
        return None if resource.api is Api.DRA else _phones(host, resource.phones.directory, resource.phones.count)
    if resource.provision is None:
        return None
    by_plugin = structs.replace(resource, provisioned_by=ProvisionedBy.PLUGIN)
    provisioner = parts.device_provisioner(host, by_plugin, time.monotonic)
    return None if provisioner is None else Provisioned(resource.provision.count, provisioner.provision(), {})


def _phones(host: Host, directory: str, count: int) -> Provisioned:
    provisioner = PhoneProvisioner(directory, host)
    phones = [phone_id(number) for number in range(count)]
    mounted = provisioner.provision(phones)
    missing = [phone for phone in phones if not provisioner.is_own(phone) and phone not in provisioner.obstacles]
    if missing and provisioner.failure is not None:
        raise provisioner.failure
    if len(provisioner.obstacles) == count:
        raise HostError(provisioner.problem)
    return Provisioned(count, len(mounted), provisioner.obstacles)
