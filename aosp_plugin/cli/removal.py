"""``aosp-plugin provision --remove``: unmounts what ``provision`` and the plugin have mounted.

A phone is in use if a pod has it or may get it according to the kubelet, or if a visible process has it open or
mounted. Where the kubelet does not answer nothing is removed, unless this runs on the host itself, where it sees all
processes, and nothing listens on the kubelet's socket. A phone is also in use if a claim is prepared with it.

The phones are listed before anything else: those that are mounted while this runs stay.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Mapping

from aosp_plugin.binder.devices.sets import natural_sort, phone_number, replicated_id
from aosp_plugin.binder.driver import binderfs, mounts
from aosp_plugin.binder.driver.host import Host, binder_parameters
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.binder.provision.device_provisioner import DEVICES_SOURCE, provisioning
from aosp_plugin.binder.provision.phone_mount import has_namespace_of_init, read_mount_table, require_propagation
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.config.keys import Config
from aosp_plugin.framework.dra.claim_host import ClaimSpecs
from aosp_plugin.framework.dra.driver_names import driver_name
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.sockets import listener
from aosp_plugin.report.leaks import sees_kernel_threads
from aosp_plugin.report.node_reporter import node_name

LOG = logging.getLogger(__name__)

Uses = dict[str, str]
"""Why devices are in use, by ID."""


def remove(config: Config, *, surplus: bool) -> bool:
    """Remove the phones and the provisioned binderfs of each resource; ``surplus``: phones beyond ``count`` alone.

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
        uses[resource.scan_directory] |= _claimed(config, resource.resource_name)
    all_removed = True
    for resource in config.resources:
        directory = resource.scan_directory
        if resource.phones is not None:
            first = resource.phones.count if surplus else 0
            kept = _remove_phones(host, directory, phones[directory], uses[directory], first)
        elif resource.provision is not None and not surplus:
            prefixes = tuple(each.device_prefix for each in config.resources if each.scan_directory == directory)
            kept = _remove_binderfs(host, directory, prefixes, uses[directory])
        else:
            continue
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


def _claimed(config: Config, resource_name: str) -> Uses:
    """Return the devices of prepared claims. Raises OSError and PluginError."""
    driver = driver_name(resource_name)
    cdi_directory = os.path.normpath(f"{config.host_root}/{config.cdi_dir}")
    specs = ClaimSpecs(driver, state_directory=config.driver_directory(driver), cdi_directory=cdi_directory)
    specs.read()
    return {device_id: f"claim {record.full_name}" for record in specs.records.values() for device_id in record.ids}


def on_host() -> bool:
    """Return whether this process has the mounts of the host's init, and may trace it."""
    return sees_kernel_threads() and has_namespace_of_init()


def _remove_phones(host: Host, directory: str, surveyed: PhoneProvisioner, uses: Uses, first: int) -> Uses:
    """Unmount phones from number ``first`` on that were surveyed, and remove their directories.

    Return why phones were kept. Raises HostError.
    """
    phones = [phone for phone in natural_sort(surveyed.mounted()) if (phone_number(phone) or 0) >= first]
    kept = {phone: uses[phone] for phone in phones if phone in uses}
    with provisioning("phones", host, directory) as path:
        _unmount(host, path, surveyed.known(phones)["devices"], kept)
        for phone in phones:
            if phone not in kept:
                try:
                    os.rmdir(f"{path}/{phone}")
                except OSError as error:  # mounted meanwhile, or something else
                    kept[phone] = f"cannot remove {error.filename}: {error.strerror}"
    return kept


def _remove_binderfs(host: Host, directory: str, prefixes: tuple[str, ...], kept: Uses) -> Uses:
    """Unmount a provisioned binderfs as a whole, unless it may be an administrator's.

    Return why it was kept. Raises HostError.
    """
    with provisioning("binder devices", host, directory) as path:
        mounted = binderfs.mount_at(path)
        if mounted is not None and not kept:
            name = os.path.basename(path)
            of_kernel = re.split("[,\n]", binder_parameters())
            others = {each for each in binderfs.device_names(path) if not each.startswith(prefixes)} - {*of_kernel}
            if others or mounted.source != DEVICES_SOURCE:
                kept[name] = f"it is not the plugin's: source {mounted.source}, other devices {sorted(others)}"
            _unmount(host, os.path.dirname(path), {name: mounted.device}, kept)
    return kept


def _unmount(host: Host, directory: str, mounted: Mapping[str, int], kept: Uses) -> None:
    """Unmount the file systems below a directory, by name and number (st_dev), and add to ``kept`` why some stay.

    The directories stay: a container that has one as a volume would not see its successor. Raises HostError.
    """
    if mounted:
        require_propagation(directory, read_mount_table(), in_container=host.process_path("/") != "/")
    holders = mounts.holders({device: name for name, device in mounted.items()})
    for name, device in mounted.items():
        if device in holders:
            kept.setdefault(name, f"process {holders[device]} has it mounted")
        if name not in kept:
            try:
                binderfs.unmount(f"{directory}/{name}")
            except HostError as error:
                kept[name] = str(error)
