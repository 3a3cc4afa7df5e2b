"""``aosp-plugin provision``: mounts and creates what the configuration orders, and ends.

Everything that exists already is kept, so a further call changes nothing. Surplus phones are kept too: only the kubelet
knows whether pods have them. It is the privileged part of a plugin with ``provisioned_by: command``, and runs before it
in an init container.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.backend.host_devices import device_provisioner
from aosp_plugin.binder.devices.phone_layout import phone_id
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.config import Api
from aosp_plugin.daemon.assembly import check_phone_directories
from aosp_plugin.errors import HostError
from aosp_plugin.framework.service import logs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.config import Config, Resource

LOG = logging.getLogger(__name__)


class _Provisioned(NamedTuple):
    """What is there for a resource after its provisioning."""

    ordered: int
    """The number of phones or binder devices in the configuration."""
    added: int
    """How many of them were mounted or created, or had another mode."""
    obstacles: Mapping[str, HostError]
    """Why single phones could not be mounted: something else is in their place. The plugin reports them."""


def provision(config: Config) -> None:
    """Provision every resource; those without anything to provision are skipped.

    A resource that fails is logged, and must not keep the plugin from serving the others. Raises HostError if all have
    failed, ConfigError, and OSError.
    """
    logs.set_up(config.log_level, config.log_format)
    check_phone_directories(config)
    errors: dict[str, str] = {}
    ordered = 0
    for resource in config.resources:
        name = resource.resource_name
        try:
            provisioned = _provision(Host(config.host_root), resource)
        except HostError as error:
            errors[name] = str(error)
            continue
        if provisioned is None:
            continue
        ordered += provisioned.ordered
        for phone, obstacle in provisioned.obstacles.items():
            LOG.warning("phone not provisioned", extra={"resource": name, "device": phone, "error": str(obstacle)})
        counts = {"ordered": provisioned.ordered, "added": provisioned.added}
        LOG.info("provisioned", extra={"resource": name, **counts})
    if len(errors) == len(config.resources):
        raise HostError("; ".join(f"{name}: {problem}" for name, problem in errors.items()))
    for name, problem in errors.items():
        LOG.error("resource not provisioned", extra={"resource": name, "error": problem})
    if not ordered and not errors:
        LOG.warning("nothing to provision", extra={"reason": "the configuration has neither phones nor provision"})


def _provision(host: Host, resource: Resource) -> _Provisioned | None:
    """Mount the phones and create the binder devices that a resource orders. Return None if it orders none.

    Under DRA, phones are mounted when claims are prepared. Raises HostError if something general is in the way, such as
    a kernel without binderfs or a missing right, or if all phones have obstacles.
    """
    if resource.phones is not None:
        return None if resource.api is Api.DRA else _phones(host, resource.phones.directory, resource.phones.count)
    if resource.provision is None:
        return None
    provisioner = device_provisioner(host, resource)
    return None if provisioner is None else _Provisioned(resource.provision.count, provisioner.provision(), {})


def _phones(host: Host, directory: str, count: int) -> _Provisioned:
    provisioner = PhoneProvisioner(directory, host)
    phones = [phone_id(number) for number in range(count)]
    mounted = provisioner.provision(phones)
    missing = [phone for phone in phones if not provisioner.is_own(phone) and phone not in provisioner.obstacles]
    if missing and provisioner.failure is not None:
        raise provisioner.failure
    if len(provisioner.obstacles) == count:
        raise HostError(provisioner.problem)
    return _Provisioned(count, len(mounted), provisioner.obstacles)
