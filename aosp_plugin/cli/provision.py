"""``aosp-plugin provision``: mounts the phones of the configuration, or unmounts them with ``--remove``.

Everything that exists already is kept, so a further call changes nothing. Surplus phones are kept too: only the kubelet
knows whether pods have them. It is the privileged part of a plugin with ``provisioned_by: command``, and runs before it
in an init container.

With ``--remove``, a phone is in use if a pod has it or may get it according to the kubelet, or if a visible process has
it open or mounted. Where the kubelet does not answer nothing is removed, unless this runs on the host itself, where it
sees all processes, and nothing listens on the kubelet's socket. A phone is also in use if a claim is prepared with it.
The phones are listed before anything else: those that are mounted while this runs stay.
"""

import asyncio
import contextlib
import logging
import os
import posixpath
from collections.abc import Mapping

from aosp_plugin.binder.devices.sets import natural_sort, phone_id, phone_number, replicated_id
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Host, HostError, mount_users, read_mounts, sees_kernel_threads
from aosp_plugin.binder.provision.device_links import DeviceLinks
from aosp_plugin.binder.provision.phone_mount import has_namespace_of_init, phones_below, require_propagation
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.config.sources import node_name
from aosp_plugin.config.values import Api
from aosp_plugin.daemon.assembly import check_phone_directories
from aosp_plugin.framework.dra.claim_records import claims_on_host
from aosp_plugin.framework.errors import ClaimRecordError
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.sockets import listener

LOG = logging.getLogger(__name__)

Uses = dict[str, str]
"""Why devices are in use, by ID."""


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

    Errors of single phones are logged. Under DRA, phones are mounted when claims are prepared. Raises HostError if
    something general is in the way, such as a kernel without binderfs or a missing right, or if every phone has an
    error.
    """
    if resource.phones is None or resource.api is Api.DRA:
        return 0
    name, ordered = resource.resource_name, resource.phones.count
    provisioner = PhoneProvisioner(resource.phones.directory, host)
    phones = [phone_id(number) for number in range(ordered)]
    mounted = provisioner.provision(phones)
    missing = [phone for phone in phones if not provisioner.is_own(phone) and phone not in provisioner.phone_errors]
    if missing and provisioner.mount_error is not None:
        raise provisioner.mount_error
    if len(provisioner.phone_errors) == ordered:
        raise HostError(provisioner.error_text)
    for phone, error in provisioner.phone_errors.items():
        LOG.warning("phone not provisioned", extra={"resource": name, "device": phone, "error": str(error)})
    LOG.info("provisioned", extra={"resource": name, "ordered": ordered, "added": len(mounted)})
    return ordered


def remove(config: Config, *, surplus: bool) -> bool:
    """Remove the phones of each resource; ``surplus``: those beyond ``count`` alone.

    What is in use stays, and is logged. Returns whether nothing had to stay. Raises HostError, PluginError and OSError.
    """
    logs.set_up(config.log_level, config.log_format)
    host = Host(config.host_root)
    phones = {
        each.scan_directory: PhoneProvisioner(each.scan_directory, host) for each in config.resources if each.phones
    }
    for provisioner in phones.values():
        provisioner.survey()
    uses = asyncio.run(_uses(config))
    for resource in config.resources:
        uses[resource.scan_directory] |= _claimed(config, host, resource.scan_directory)
    all_removed = True
    for resource in config.resources:
        if resource.phones is None:
            continue
        directory = resource.phones.directory
        first = resource.phones.count if surplus else 0
        kept = _remove_phones(host, directory, phones[directory], uses[directory], first)
        DeviceLinks(host).repair({}, [directory])
        for name, reason in kept.items():
            LOG.warning("not removed", extra={"resource": resource.resource_name, "device": name, "reason": reason})
        all_removed &= not kept
    return all_removed


async def _uses(config: Config) -> dict[str, Uses]:
    """Return which devices pods have or may get, by directory. Raises HostError if that is unknown."""
    uses: dict[str, Uses] = {resource.scan_directory: {} for resource in config.resources}
    names = {resource.resource_name for resource in config.resources}
    with contextlib.closing(PodResources(config.pod_resources_socket, names, node_name=node_name())) as pod_resources:
        offered, allocations = await pod_resources.allocatable(), await pod_resources.query()
    problem = (
        offered.problem or allocations.problem or ("" if allocations.pods_known else "it lists no pod but static ones")
    )
    if problem:
        if on_host() and config.pod_resources_socket and listener(config.pod_resources_socket) is None:
            return uses
        raise HostError(f"cannot find out from the kubelet which devices are in use: {problem}")
    for resource in config.resources:
        name = resource.resource_name
        found = dict.fromkeys(offered.devices[name], "a plugin offers it to pods")
        found |= {key: f"pod {owner.namespace}/{owner.name}" for key, (owner, *_) in allocations.owners[name].items()}
        for device_id, use in found.items():
            uses[resource.scan_directory][replicated_id(device_id, resource.replicas) or device_id] = use
    return uses


def _claimed(config: Config, host: Host, directory: str) -> Uses:
    """Return the devices below a directory that claims have, whatever the driver. Raises OSError and PluginError."""
    claims = claims_on_host(config.driver_directory(""))
    if claims.damaged:
        raise ClaimRecordError(f"the claim record {claims.damaged[0]} is damaged: its claim may have any device")
    resolved = host.resolve(directory)
    return {
        posixpath.relpath(place, resolved): f"claim {content.claim.full_name}"
        for content in claims.prepared
        for place in content.places
        if place.startswith(f"{resolved}/")
    }


def on_host() -> bool:
    """Return whether this process has the mounts of the host's init, and may trace it."""
    return sees_kernel_threads() and has_namespace_of_init()


def _remove_phones(host: Host, directory: str, surveyed: PhoneProvisioner, uses: Uses, first: int) -> Uses:
    """Unmount phones from number ``first`` on that were surveyed, and remove their directories.

    Return why phones were kept. Raises HostError.
    """
    phones = [phone for phone in natural_sort(surveyed.directories()) if (phone_number(phone) or 0) >= first]
    kept = {phone: uses[phone] for phone in phones if phone in uses}
    with phones_below(host, directory) as path:
        _unmount(host, path, {phone: surveyed.file_systems[phone] for phone in phones if surveyed.is_own(phone)}, kept)
        for phone in phones:
            if phone not in kept:
                try:
                    os.rmdir(f"{path}/{phone}")
                except OSError as error:  # mounted meanwhile, or something else
                    kept[phone] = f"cannot remove {error.filename}: {error.strerror}"
    return kept


def _unmount(host: Host, directory: str, mounted: Mapping[str, int], kept: Uses) -> None:
    """Unmount the file systems below a directory, by name and st_dev, and add to ``kept`` why some stay.

    The directories stay: a container that has one as a volume would not see its successor. Raises HostError.
    """
    if mounted:
        require_propagation(host, directory, read_mounts())
    users = mount_users({st_dev: name for name, st_dev in mounted.items()})
    for name, st_dev in mounted.items():
        if st_dev in users:
            kept.setdefault(name, f"process {users[st_dev]} has it mounted")
        if name not in kept:
            try:
                binderfs.unmount(f"{directory}/{name}")
            except HostError as error:
                kept[name] = str(error)
