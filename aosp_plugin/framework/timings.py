"""The durations that concern several modules, or that tests shorten."""

from typing import NamedTuple

GRACE_PERIOD = 5.0
"""Seconds from SIGTERM to SIGKILL: ``terminationGracePeriodSeconds`` and ``TimeoutStopSec`` in deploy/."""


class Timings(NamedTuple):
    """Durations in seconds. Tests replace some of them; a plugin has no reason to."""

    quiet: float = 0.01
    """Time without a change of the host before a scan: one cause often changes several files."""
    longest_delay: float = 0.1
    """Longest time from a change to its scan, even if further changes follow."""
    safety: float = 60.0
    """Interval of scans without a change, for changes that the kernel does not report."""
    poll: float = 1.0
    """Interval of scans while a directory cannot be watched."""
    retry: float = 1.0
    """Pause after a failed scan or host update: no event reports that disk space or descriptors are free."""
    hang: float = 10.0
    """Time after which a running call on the host counts as hanging."""

    pre_start: float = 10.0
    """Deadline of ``Backend.pre_start``. The kubelet waits for 30 s (pkg/apis/deviceplugin/v1beta1/constants.go)."""
    register: float = 20.0
    """Deadline of Register: a kubelet takes up to 10 s to dial back before it answers, and has no deadline itself."""
    stream: float = 10.0
    """Time from Register to ListAndWatch: old kubelets dial only then, for up to 10 s, and do not report a failure."""
    stop: float = GRACE_PERIOD - 1.5
    """Time for an orderly shutdown. What still runs afterwards is logged and abandoned."""
    first_pause: float = 0.1
    """Pause before the first retry of a registration, which doubles with each retry."""
    longest_pause: float = 15.0
    """Upper limit of this pause, for a kubelet that rejects the plugin. A new kubelet.sock ends the pause at once."""
    patience: float = 20.0
    """Time for the kubelet to register a DRA driver after the socket appeared, or after its last attempt. The kubelet
    retries after 0.5 s, and then after twice as long each time."""
    claim_conflict: float = 30.0
    """Longest wait of a preparation for a device that another claim has: the kubelet waits for 45 s."""
    claim_poll: float = 2.0
    """Interval of attempts during that wait, and of queries whether the other claim still needs the device: another
    process of the driver may release it."""
    claim_slow: float = 3.0
    """Time after which a preparation in progress is reported."""
    claim_gone: float = 10.0
    """Time for the kubelet to unprepare a claim that is gone, before the driver does: its containers may still be
    ending."""
    claim_verify: float = 2.0
    """Time for the API server to answer for a claim that is prepared already."""
    claim_round: float = 60.0
    """Interval of repairs, and of queries for a claim that was gone."""
    claim_ask: float = 600.0
    """Interval of queries for each claim: every node sends them to the API server. If a claim waits for a device, the
    API server is asked at once for the claim that has it."""
    slice_relist: float = 300.0
    """Interval of comparisons of the ResourceSlices without an event. A lost event costs the node its devices for this
    time, and attributes change without an event."""
    watch_pause: tuple[float, float] = (0.0, 2.0)
    """Pause between watches of ResourceSlices; random, because all nodes lose their watches when an API server ends."""
    view_interval: float = 30.0
    """Interval of queries how many devices the kubelet has, while nothing changes."""
    view_after_registration: float = 2.0
    """Time from a registration, or from the start or end of another plugin of the resource, to such a query."""
    view_settle: float = 1.0
    """Time without a change of the devices before such a query: the kubelet may not have processed the change yet."""
    view_pause: float = 120.0
    """Shortest time between registrations because of the kubelet's answers."""
    recheck: float = 2.5
    """How often to check what may change soon and without an event: whether the kubelet of a DRA driver runs, whether
    the kubelet still has fewer devices than published, whether another plugin of the resource still runs, whether
    claims can be repaired, and whether the Node has the devices."""


DEFAULT = Timings()
