"""What each problem of a status report is called, what to do first, and where docs/runbook.md explains it.

This is the only place with these texts: ``/status``, and with it the page, has them from here, and ``make docs`` writes
the runbook's reasons from them. A text is enough for the first step, because the page is often served where
the documents are not at hand. All else is in the runbook.
"""

from collections.abc import Mapping
from typing import NamedTuple

from aosp_plugin.binder.devices.health import Reason


class Entry(NamedTuple):
    """A kind of problem."""

    title: str
    """What is wrong; for devices, the rest of a sentence that begins with their number."""
    action: str
    """What it means and what to do first."""
    runbook: str
    """The fragment of the heading in docs/runbook.md."""


PROBLEMS: Mapping[str, Entry] = {
    "allocations-unknown": Entry(
        "Which pod has which device is unknown",
        "The kubelet's podresources API does not answer: check the kubelet, and the mount of pod_resources_socket.",
        "aosppluginallocationsfailing",
    ),
    "polling": Entry(
        "File changes are detected by polling, because inotify is unavailable",
        "Changes are noticed within a second. Raise fs.inotify.max_user_instances and fs.inotify.max_user_watches.",
        "aosppluginpolling",
    ),
    "not-registered": Entry(
        "Not registered with the kubelet",
        "New pods get no devices; running pods keep theirs. On the node: systemctl status kubelet containerd.",
        "aosppluginnotregistered",
    ),
    "kubelet-disagrees": Entry(
        "The kubelet has fewer devices than the plugin published",
        "Pods are rejected although devices are free. The plugin registers again; if that does not help, look for a "
        "second plugin of the resource, and restart the kubelet.",
        "aosppluginkubeletlacksdevices",
    ),
    "slices-missing": Entry(
        "The API server does not have all ResourceSlices of this node",
        "Pods may not get the free devices. Check the network to the API server, and the plugin's ClusterRole.",
        "aosppluginslicesmissing",
    ),
    "outdated": Entry(
        "The device list may be out of date",
        "The kubelet keeps the last list. Check for a hanging file system, a full disk or missing rights.",
        "aosppluginscanhung",
    ),
    "second-plugin": Entry(
        "Another plugin serves the same resource",
        "The kubelet uses the one that registered last. Outside a rolling update, remove one of the two.",
        "aosppluginsecondplugin",
    ),
    "claims-not-repaired": Entry(
        "Claims cannot be prepared in time, repaired or released",
        "Their pods wait. The plugin retries; its log has the cause for each claim.",
        "aosppluginclaimrepairsfailing",
    ),
    "too-few-devices": Entry(
        "Fewer devices exist than the configuration orders",
        "Existing devices stay. The plugin's log has the cause under host update failed.",
        "aospplugindevicesnotprovisioned",
    ),
    "no-devices": Entry(
        "No device exists",
        "Pods that request the resource stay pending. Load binder_linux, or correct device_dir and device_prefix.",
        "aosppluginnodevices",
    ),
    "leak-detection-incomplete": Entry(
        "Leak detection is incomplete",
        "Some leaked devices may not be shown. If a right is missing, deploy/privileged grants it.",
        "aosppluginleakdetectionincomplete",
    ),
    "leak-detection-failing": Entry(
        "Leaks are shown as of an earlier scan",
        "Scans for leaked devices fail: too few file descriptors, or a file system that hangs.",
        "aosppluginleakdetectionfailing",
    ),
    "leaked": Entry(
        "held open by a process outside its pod",
        "The next phone on the device would share a binder context with that process: end it.",
        "aosppluginleakeddevices",
    ),
    "gone": Entry(
        "gone, although pods have them",
        "The binder device was removed while a pod used it. Create it again, then restart the pod.",
        "aospplugindeviceslost",
    ),
    "truncated": Entry(
        "not offered: the kubelet's message limit of 4 MiB is reached",
        "Use shorter device names or fewer devices in one resource.",
        "aospplugindevicestruncated",
    ),
}
"""Problems by kind, except those of unhealthy devices."""


REASONS: Mapping[str, tuple[str, str]] = {
    Reason.FOREIGN_MOUNT: (
        "hidden by a foreign mount",
        "Unmount what is in place of the phone's binderfs.",
    ),
    Reason.NOT_PROVISIONED: (
        "without a binderfs, and the plugin is not to mount one",
        "Restart the plugin's pod on this node: its init container mounts what is missing.",
    ),
    Reason.MISSING: (
        "missing: the file does not exist",
        "Create it again, or its binderfs, or what its link leads to. After missing_device_ttl it is not listed.",
    ),
    Reason.INCOMPLETE: (
        "incomplete: a binder device of the set is missing",
        "Create it again. If it never existed, correct sets.size.",
    ),
    Reason.BINDERFS_UNAVAILABLE: (
        "not available: no binderfs can be mounted for a claim",
        "Load binder_linux on the node, and check that the plugin's pod is privileged.",
    ),
    Reason.NOT_A_DEVICE: (
        "not a character device",
        "Remove the file or directory with that name, and create the device again.",
    ),
    Reason.NOT_BINDER: (
        "not from the binder driver",
        "Remove the device, which belongs to another driver, and create it again.",
    ),
    Reason.REPLACED: (
        "replaced: the binderfs was mounted again",
        "Restart the pods: they have devices of the old mount. The devices are healthy after missing_device_ttl.",
    ),
    Reason.NOT_RECREATED: (
        "not recreated: it may carry the context of the tenant before",
        "The plugin retries after each scan; its log has the cause.",
    ),
    Reason.PROBE_FAILED: (
        "not answering the probe of the binder driver",
        "Check dmesg; if all devices fail at once, drain and reboot the node.",
    ),
    Reason.REQUIREMENT_MISSING: (
        "lacking another device of the host",
        "Load the driver of the path that does not exist. If there is no room, lower the count, or raise per_device.",
    ),
    Reason.IN_USE_BY_OTHER_API: (
        "in use through the other API",
        "The api of the resource was changed while a pod had the device. It is free when that pod ends.",
    ),
    Reason.NOT_IN_CDI_SPEC: (
        "not in the CDI spec",
        "Check for a full or read-only file system: the spec could not be written.",
    ),
    Reason.SURPLUS: (
        "surplus: beyond phones.count",
        "The count was lowered. The phone is removed when its pod has ended.",
    ),
}
"""Title and action of the problem of unhealthy devices by reason, whose heading in the runbook is the reason."""

OTHER_REASON = Entry("unhealthy", "The reason and the detail of each device are below.", "unhealthy-devices")


def entry(kind: str) -> Entry:
    """Return what to say about a kind of problem, or about a reason; a general text for an unknown reason."""
    if kind in REASONS:
        return Entry(*REASONS[kind], runbook=kind)
    return PROBLEMS.get(kind, OTHER_REASON)
