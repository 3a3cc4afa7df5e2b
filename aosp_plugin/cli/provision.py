"""``aosp-plugin provision``: mounts and creates what the configuration orders, and ends.

Everything that exists already is kept, so a further call changes nothing. Surplus phones are kept too: only the kubelet
knows whether pods have them. It is the privileged part of a plugin with ``provisioned_by: command``, and runs before it
in an init container.
"""

import logging

from aosp_plugin.backend.binder_backend import device_provisioner
from aosp_plugin.binder.devices.sets import phone_id
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.config.keys import Config, Phones, Resource
from aosp_plugin.config.values import Api
from aosp_plugin.daemon.assembly import check_phone_directories
from aosp_plugin.framework.service import logs

LOG = logging.getLogger(__name__)


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
        try:
            ordered += _provision(Host(config.host_root), resource)
        except HostError as error:
            errors[resource.resource_name] = str(error)
    if len(errors) == len(config.resources):
        raise HostError("; ".join(f"{name}: {problem}" for name, problem in errors.items()))
    for name, problem in errors.items():
        LOG.error("resource not provisioned", extra={"resource": name, "error": problem})
    if not ordered and not errors:
        LOG.warning("nothing to provision", extra={"reason": "the configuration has neither phones nor provision"})


def _provision(host: Host, resource: Resource) -> int:
    """Mount the phones or create the binder devices that a resource orders, and return their number.

    Under DRA, phones are mounted when claims are prepared. Raises HostError if something general is in the way, such as
    a kernel without binderfs or a missing right, or if all phones have obstacles.
    """
    name = resource.resource_name
    if resource.phones is not None and resource.api is not Api.DRA:
        ordered, added = resource.phones.count, _mount(host, resource.phones, name)
    elif resource.provision is not None and (provisioner := device_provisioner(host, resource)) is not None:
        ordered, added = resource.provision.count, provisioner.provision()
    else:
        return 0
    LOG.info("provisioned", extra={"resource": name, "ordered": ordered, "added": added})
    return ordered


def _mount(host: Host, ordered: Phones, resource_name: str) -> int:
    """Mount the phones that are missing; return their number. Single obstacles are logged: the plugin reports them."""
    provisioner = PhoneProvisioner(ordered.directory, host)
    phones = [phone_id(number) for number in range(ordered.count)]
    mounted = provisioner.provision(phones)
    missing = [phone for phone in phones if not provisioner.is_own(phone) and phone not in provisioner.obstacles]
    if missing and provisioner.failure is not None:
        raise provisioner.failure
    if len(provisioner.obstacles) == ordered.count:
        raise HostError(provisioner.problem)
    for phone, obstacle in provisioner.obstacles.items():
        extra = {"resource": resource_name, "device": phone, "error": str(obstacle)}
        LOG.warning("phone not provisioned", extra=extra)
    return len(mounted)
