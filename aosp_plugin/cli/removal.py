"""``aosp-plugin provision --remove``: unmounts what ``provision`` and the plugin have mounted.

A phone is in use if a pod has it or may get it according to the kubelet, or if a visible process has it open or
mounted. Where the kubelet does not answer nothing is removed, unless this runs on the host itself, where it sees all
processes, and nothing listens on the kubelet's socket.
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
from aosp_plugin.binder.provision.device_provisioner import provisioning
from aosp_plugin.binder.provision.phone_mount import has_namespace_of_init, read_mount_table, require_propagation
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.config.keys import Config, Phones
from aosp_plugin.config.values import Api
from aosp_plugin.framework.dra.driver_names import driver_name
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.sockets import SocketDirectory, listener, socket_stem
from aosp_plugin.report.leaks import sees_kernel_threads

LOG = logging.getLogger(__name__)

DIRECTORY = "/run/aosp-binderfs"
"""What the default directories are in."""

Uses = dict[str, str]
"""Why devices are in use, by ID."""


def remove(config: Config, *, surplus: bool) -> bool:
    """Remove the phones and the provisioned binderfs of each resource; ``surplus``: phones beyond ``count`` alone.

    What is in use stays, and is logged. Returns whether nothing had to stay. Raises HostError and OSError.
    """
    logs.set_up(config.log_level, config.log_format)
    uses = asyncio.run(_uses(config))
    host = Host(config.host_root)
    all_removed = True
    for resource in config.resources:
        if resource.phones is not None:
            kept = _remove_phones(host, resource.phones, uses[resource.resource_name], surplus=surplus)
        elif resource.provision is not None and not surplus:
            directory = resource.provision.directory
            sharing = [each for each in config.resources if each.provision and each.provision.directory == directory]
            of_all = {key: use for each in sharing for key, use in uses[each.resource_name].items()}
            prefixes = tuple(each.device_prefix for each in sharing)
            kept = _remove_binderfs(host, directory, of_all, prefixes)
        else:
            continue
        for reason in dict.fromkeys(kept.values()):
            devices = ",".join(name for name in kept if kept[name] == reason)
            LOG.warning("not removed", extra={"resource": resource.resource_name, "devices": devices, "reason": reason})
        LOG.info("removed", extra={"resource": resource.resource_name, "kept": len(kept)})
        all_removed &= not kept
    return all_removed


async def _uses(config: Config) -> dict[str, Uses]:
    """Return which devices pods have or may get, by resource name. Raises HostError if that is unknown."""
    replicas = {resource.resource_name: resource.replicas for resource in config.resources}
    with contextlib.closing(PodResources(config.pod_resources_socket, replicas)) as pod_resources:
        offered, allocations = await pod_resources.allocatable(), await pod_resources.query()
    problem = offered.problem or allocations.problem or ("" if allocations.pods_known else "it lists no pod")
    if problem:
        if on_host() and config.pod_resources_socket and listener(config.pod_resources_socket) is None:
            return {name: {} for name in replicas}
        raise HostError(f"cannot find out from the kubelet which devices are in use: {problem}")
    for resource in config.resources:
        if resource.api is Api.DRA:
            driver = driver_name(resource.resource_name)
            if SocketDirectory(config.plugins_registry, socket_stem(driver)).other_plugins():
                raise HostError(f"the driver {driver} runs on this node, and may mount phones: uninstall it first")
    uses: dict[str, Uses] = {}
    for name, count in replicas.items():
        found = dict.fromkeys(offered.devices[name], "a plugin offers it to pods")
        for device_id, (owner, *_) in allocations.owners[name].items():
            found[device_id] = f"pod {owner.namespace}/{owner.name}"
        uses[name] = {replicated_id(device_id, count) or device_id: use for device_id, use in found.items()}
    return uses


def on_host() -> bool:
    """Return whether this process has the mounts of the host's init, and may trace it."""
    return sees_kernel_threads() and has_namespace_of_init()


def _remove_phones(host: Host, ordered: Phones, uses: Uses, *, surplus: bool) -> Uses:
    """Unmount phones, and remove their directory when it is empty. Return why phones were kept. Raises HostError."""
    provisioner = PhoneProvisioner(ordered.directory, host)
    first = ordered.count if surplus else 0
    phones = [phone for phone in natural_sort(provisioner.mounted()) if (phone_number(phone) or 0) >= first]
    if phones:
        provisioner.check()
    provisioner.survey()
    kept = {phone: uses[phone] for phone in phones if phone in uses}
    with provisioning("phones", host, ordered.directory) as directory:
        _unmount(directory, provisioner.known(phones)["devices"], kept)
    provisioner.remove([phone for phone in phones if phone not in kept], len(phones))
    kept |= {phone: str(error) for phone, error in provisioner.obstacles.items()}
    if not surplus and not kept:
        _remove_directory(host, ordered.directory)
    return kept


def _remove_binderfs(host: Host, directory: str, uses: Uses, prefixes: tuple[str, ...]) -> Uses:
    """Unmount a provisioned binderfs, and remove its directory. Return why devices were kept, and it with them.

    It also stays if it has devices without one of the ``prefixes``, except those that the kernel creates at each mount.
    Raises HostError.
    """
    kept = {**uses}
    with provisioning("binder devices", host, directory) as path:
        mounted = binderfs.mount_at(path)
        if mounted is not None:
            require_propagation(path, read_mount_table(), in_container=host.process_path("/") != "/")
            others = {*binderfs.device_names(path)}.difference(re.split("[,\n]", binder_parameters()))
            kept |= {name: "it is not of this configuration" for name in others if not name.startswith(prefixes)}
            if not kept:
                _unmount(os.path.dirname(path), {os.path.basename(path): mounted.device}, kept)
    if not kept:
        _remove_directory(host, directory)
    return kept


def _unmount(directory: str, mounted: Mapping[str, int], kept: Uses) -> None:
    """Unmount the file systems below a directory, by name and number (st_dev), and add to ``kept`` why some stay."""
    holders = mounts.holders({device: name for name, device in mounted.items()})
    for name, device in mounted.items():
        if device in holders:
            kept.setdefault(name, f"process {holders[device]} has it mounted")
        if name not in kept:
            try:
                binderfs.unmount(f"{directory}/{name}")
            except HostError as error:
                kept[name] = str(error)


def _remove_directory(host: Host, directory: str) -> None:
    """Remove a directory without phones or binderfs, and ``DIRECTORY`` above it, if they are empty and no volumes."""
    with contextlib.suppress(OSError):  # an empty directory is no reason to fail
        os.rmdir(host.process_path(host.resolve(directory)))
        if os.path.dirname(directory) == DIRECTORY:
            os.rmdir(host.process_path(DIRECTORY))
