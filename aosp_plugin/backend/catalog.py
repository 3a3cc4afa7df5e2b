"""The kinds of conditions of this product, besides the kinds of the framework (``framework.conditions``).

The conditions of single devices are reasons: ``binder.devices.health`` has their texts.
"""

from typing import Final

from aosp_plugin.framework.conditions import Kind, Severity

NO_DEVICES: Final = Kind(
    "no-devices",
    "No device exists",
    "Pods that request the resource stay pending. Load binder_linux, or correct device_dir and device_prefix. "
    "docs/hosts.md has the configuration for /dev/binder.",
    "PluginDevicesMissing",
    heading="no-devices",
)
TOO_FEW_DEVICES: Final = Kind(
    "too-few-devices",
    "Fewer devices exist than the configuration orders",
    'Existing devices stay available. Search the plugin\'s log for "host update failed".',
    "PluginDevicesMissing",
    heading="phones-that-were-not-made",
)
UNLINKED: Final = Kind(
    "unlinked",
    "Binder devices have no link in /dev/char, without which some runtimes close them in running containers",
    "runc 1.1.3 to 1.1.6 closes them, with the systemd cgroup driver: run runc --version on the node. Use another "
    "version, or give the plugin the right to link the devices.",
    heading="eperm-inside-the-container",
    severity=Severity.NOTICE,
)
RESTRICTED: Final = Kind(
    "restricted",
    "that not all users of a container may open, because of the mode of a binder device",
    "Most processes of Android get EACCES. On the node: chmod 0666, and a udev or tmpfiles.d rule for the next "
    "boot. Then start the containers again.",
    heading="eacces-inside-the-container",
    begins="not all users may open binder devices",
    ends="all users may open binder devices again",
)
GONE: Final = Kind(
    "gone",
    "gone, although pods have them",
    "The binder device was removed while a pod used it. Create it again, then restart the pod.",
    "PluginDevicesMissing",
)

RECORDS_NOT_UPDATED: Final = Kind(
    "device-records",
    "The records of devices and claims cannot be read or updated",
    "Devices that pods may have are held, or not recognized after a change of the configuration. Check the disk.",
    heading="a-full-disk",
    begins="device records cannot be updated, retrying",
    ends="device records updated",
)
RECORDS_UNREADABLE: Final = RECORDS_NOT_UPDATED._replace(
    begins="device records cannot be read, retrying", ends="device records read"
)
SPECS_NOT_REMOVED: Final = Kind(
    "cdi-specs-not-removed",
    "Former CDI specs cannot be removed",
    "Runtimes may prefer them, so that the configuration has no effect on new pods. Remove the files.",
    heading="unresolvable-cdi-devices",
    begins="former CDI specs could not be removed, retrying",
    ends="former CDI specs removed",
)
MOUNTS_UNREADABLE: Final = Kind(
    "mounts-unreadable",
    "The plugin cannot find out whether its mounts were removed on the host",
    "If a directory was removed, restart the plugin's pod. Check the host's directories for errors.",
    heading="first-steps",
    severity=Severity.NOTICE,
    begins="mounts cannot be read, retrying",
    ends="mounts read again",
)
NODE_TASK_FAILING: Final = Kind(
    "node-task-failing",
    "The plugin cannot write to the Node",
    "Events are missing, or the startup taint stays. Check the plugin's ClusterRole and its network.",
    "PluginApiRequestsFailing",
    begins="node task failed, retrying",
    ends="node task recovered",
)
