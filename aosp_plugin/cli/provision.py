"""``aosp-plugin provision``: mounts the phones of the configuration, and ends.

Everything that exists already is kept, so a further call changes nothing. Surplus phones are kept too: only the kubelet
knows whether pods have them. It is the privileged part of a plugin with ``provisioned_by: command``, and runs before it
in an init container.
"""

import logging

from aosp_plugin.binder.devices.sets import phone_id
from aosp_plugin.binder.driver.host import Host, HostError
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.config.keys import Config, Phones, Resource
from aosp_plugin.config.values import Api
from aosp_plugin.daemon.assembly import check_phone_directories
from aosp_plugin.framework.service import logs

LOG = logging.getLogger(__name__)


def provision(config: Config) -> None:
    """Mount the phones of every resource; those without phones are skipped.

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
        LOG.warning("nothing to provision", extra={"reason": "the configuration has no phones"})


def _provision(host: Host, resource: Resource) -> int:
    """Mount the phones of a resource, and return how many it orders.

    Under DRA, phones are mounted when claims are prepared. Raises HostError if something general is in the way, such as
    a kernel without binderfs or a missing right, or if every phone has an error.
    """
    name = resource.resource_name
    if resource.phones is None or resource.api is Api.DRA:
        return 0
    ordered = resource.phones.count
    LOG.info(
        "provisioned",
        extra={"resource": name, "ordered": ordered, "added": _mount(host, resource.phones, name)},
    )
    return ordered


def _mount(host: Host, ordered: Phones, resource_name: str) -> int:
    """Mount the phones that are missing; return their number. Errors of single phones are logged."""
    provisioner = PhoneProvisioner(ordered.directory, host)
    phones = [phone_id(number) for number in range(ordered.count)]
    mounted = provisioner.provision(phones)
    missing = [phone for phone in phones if not provisioner.is_own(phone) and phone not in provisioner.phone_errors]
    if missing and provisioner.mount_error is not None:
        raise provisioner.mount_error
    if len(provisioner.phone_errors) == ordered.count:
        raise HostError(provisioner.error_text)
    for phone, error in provisioner.phone_errors.items():
        extra = {"resource": resource_name, "device": phone, "error": str(error)}
        LOG.warning("phone not provisioned", extra=extra)
    return len(mounted)
