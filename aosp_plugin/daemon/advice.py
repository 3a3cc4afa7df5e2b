"""What the problems in a status report mean, what to do first, and which heading of docs/runbook.md has more.

The page is often served where the documents are not at hand, so each text has to be enough for the first step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.health import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping


class Advice(NamedTuple):
    """What to say about one kind of problem."""

    title: str
    """What is wrong; for devices, the rest of a sentence that begins with their number."""
    action: str
    """What it means and what to do first."""
    runbook: str
    """The fragment of the heading in docs/runbook.md."""


NODE: Mapping[str, Advice] = {
    "allocations-unknown": Advice(
        "Which pod has which device is unknown",
        "The kubelet's podresources API does not answer, so that no device counts as free. Check that the kubelet "
        "runs, and that the directory of pod_resources_socket is mounted.",
        "aosppluginallocationsfailing",
    ),
    "polling": Advice(
        "File changes are detected by polling, because inotify is unavailable",
        "Changes are noticed within a second instead of at once. The host has exhausted its inotify limits: raise "
        "fs.inotify.max_user_instances and fs.inotify.max_user_watches.",
        "aosppluginpolling",
    ),
}
"""Problems of the whole node by kind."""

RESOURCE: Mapping[str, Advice] = {
    "not-registered": Advice(
        "Not registered with the kubelet",
        "New pods get no devices; running pods keep theirs. The plugin retries without end. Check the kubelet and the "
        "container runtime on the node: systemctl status kubelet containerd.",
        "aosppluginnotregistered",
    ),
    "kubelet-disagrees": Advice(
        "The kubelet has fewer devices than the plugin published",
        "Pods are rejected although devices are free. The plugin registers again by itself; if that does not help, "
        "check whether another plugin serves the resource, and restart the kubelet.",
        "aosppluginkubeletlacksdevices",
    ),
    "slices-missing": Advice(
        "The API server does not have all ResourceSlices of this node",
        "The scheduler may not place pods on the free devices. Check the plugin's access to the API server, its "
        "ClusterRole and the network.",
        "aosppluginslicesmissing",
    ),
    "outdated": Advice(
        "The device list may be out of date",
        "The kubelet keeps the last list. Check for a file system that does not answer, a full disk or missing rights; "
        "the plugin's log has the first cause.",
        "aosppluginscanhung",
    ),
    "second-plugin": Advice(
        "Another plugin serves the same resource",
        "The kubelet uses the one that registered last. Outside a rolling update, remove one of the two.",
        "aosppluginsecondplugin",
    ),
    "claims-not-repaired": Advice(
        "Claims cannot be repaired or released",
        "Their pods wait. The plugin retries; its log has the cause for each claim.",
        "aosppluginclaimrepairsfailing",
    ),
    "too-few-devices": Advice(
        "Fewer devices exist than the configuration orders",
        "Existing devices stay. The plugin's log has the cause under host update failed: missing rights, no binderfs "
        "in the kernel, or a limit.",
        "aospplugindevicesnotprovisioned",
    ),
    "no-devices": Advice(
        "No device exists",
        "Pods that request the resource stay pending. Load binder_linux and create binder devices, or correct "
        "device_dir and device_prefix.",
        "aosppluginnodevices",
    ),
    "leak-detection-incomplete": Advice(
        "Leak detection is incomplete",
        "Some leaked devices may not be shown. deploy/privileged grants a right that is missing; otherwise set "
        "leak_scan_interval: 0. A pod with very many file descriptors may hide a leak: ask its owner.",
        "aosppluginleakdetectionincomplete",
    ),
    "leak-detection-failing": Advice(
        "Leaks are shown as of an earlier scan",
        "Scans for leaked devices fail: too few file descriptors, or a process with a file on a file system that "
        "hangs. Device scans are not affected.",
        "aosppluginleakdetectionfailing",
    ),
}
"""Problems of a resource by kind."""

DEVICES: Mapping[str, Advice] = {
    "leaked": Advice(
        "held open by a process outside its pod",
        "The next phone on the device would share a binder context with that process. If it belongs to a pod that has "
        "ended, end the process; if it is a tool of the host, stop it.",
        "aosppluginleakeddevices",
    ),
    "gone": Advice(
        "gone, although pods have them",
        "The binder device was removed or the binderfs unmounted while a pod used it. Create the device again, then "
        "restart the pod: it keeps the old one.",
        "aospplugindeviceslost",
    ),
    "truncated": Advice(
        "not offered: the kubelet's message limit of 4 MiB is reached",
        "Use shorter device names or fewer devices in one resource.",
        "aospplugindevicestruncated",
    ),
    Reason.FOREIGN_MOUNT: Advice(
        "hidden by a foreign mount",
        "Another file system or a file is in place of the phone's binderfs. Unmount it; the phone then is healthy "
        "again by itself.",
        "foreign-mount",
    ),
    Reason.NOT_PROVISIONED: Advice(
        "without a binderfs, and the plugin has no right to mount one",
        "Restart the plugin's pod on this node: its init container mounts what is missing. Phones that run keep what "
        "they have.",
        "not-provisioned",
    ),
    Reason.MISSING: Advice(
        "missing: the file does not exist",
        "It was removed, its link is dangling, or its binderfs is not mounted. It is healthy as soon as the file is "
        "back, and dropped from the list after missing_device_ttl.",
        "missing",
    ),
    Reason.INCOMPLETE: Advice(
        "incomplete: a binder device of the set is missing",
        "Create the missing binder device again. If it never existed, sets.size does not match how devices are made.",
        "incomplete",
    ),
    Reason.BINDERFS_UNAVAILABLE: Advice(
        "not available: no binderfs can be mounted",
        "Load binder_linux on the node, and check that the plugin's pod is privileged. Running phones are not "
        "affected.",
        "binderfs-unavailable",
    ),
    Reason.NOT_A_DEVICE: Advice(
        "not a character device",
        "A file or directory has the name of a binder device. Remove it and create the device again.",
        "not-a-device",
    ),
    Reason.NOT_BINDER: Advice(
        "not from the binder driver",
        "The device number belongs to another driver. Remove the device and create it again.",
        "not-binder",
    ),
    Reason.REPLACED: Advice(
        "replaced: its binderfs was mounted again",
        "Running pods still have devices of the old mount. Restart them; the devices are healthy after "
        "missing_device_ttl, or after a restart of the plugin.",
        "replaced",
    ),
    Reason.NOT_RECREATED: Advice(
        "not recreated: it may carry the context of the tenant before",
        "No pod gets it. The plugin retries after each scan; its log has the cause.",
        "not-recreated",
    ),
    Reason.PROBE_FAILED: Advice(
        "not answering the probe of the binder driver",
        "The driver gives no or another version. Check dmesg; if all devices fail at once, drain and reboot the node.",
        "probe-failed",
    ),
    Reason.REQUIREMENT_MISSING: Advice(
        "lacking another device of the host",
        "A required path of shared_devices, or the spread device, does not exist. Load its driver.",
        "requirement-missing",
    ),
    Reason.IN_USE_BY_OTHER_API: Advice(
        "in use through the other API",
        "The api of the resource was changed while a pod had the device. It is free when that pod ends.",
        "in-use-by-other-api",
    ),
    Reason.NOT_IN_CDI_SPEC: Advice(
        "not in the CDI spec",
        "The spec could not be written, so containers could not start. Check for a full or read-only file system.",
        "not-in-cdi-spec",
    ),
    Reason.SURPLUS: Advice(
        "surplus: beyond phones.count",
        "The count was lowered. The phone is removed when its pod has ended.",
        "surplus",
    ),
}
"""Problems of devices by kind; those of unhealthy devices have the name of the reason."""

OTHER_REASON = Advice("unhealthy", "The reason and the detail of each device are below.", "unhealthy-devices")
"""For a reason that has no advice."""
