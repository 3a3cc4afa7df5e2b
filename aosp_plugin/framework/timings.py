"""Time in the framework: its durations in seconds, the clock, and pauses between attempts."""

import asyncio
import random
import time
from typing import NamedTuple

from aosp_plugin.framework.aio import wait_any

GRACE_PERIOD = 5.0
"""Seconds from SIGTERM to SIGKILL: ``terminationGracePeriodSeconds`` and ``TimeoutStopSec`` in deploy/."""


class Timings(NamedTuple):
    """Durations in seconds. Tests replace some of them; a plugin has no reason to."""

    quiet: float = 0.01
    """Without a change of the host before a scan: one cause often changes several files."""
    longest_delay: float = 0.1
    """From the first change to its scan, however many follow."""
    safety: float = 60.0
    """Between two scans without a change, for changes that the kernel does not report."""
    poll: float = 1.0
    """The same while a directory cannot be watched."""
    retry: float = 1.0
    """From a failed scan or host update to the next one: no event reports that disk space or descriptors are free."""
    hang: float = 10.0
    """After which a call on the host that has not returned counts as hanging, and a question has no answer."""

    pre_start: float = 10.0
    """For ``Backend.pre_start``. The kubelet waits for 30 s (pkg/apis/deviceplugin/v1beta1/constants.go)."""
    register: float = 20.0
    """For Register: a kubelet takes up to 10 s to dial back before it answers, and has no deadline itself."""
    stream: float = 10.0
    """For ListAndWatch after Register: old kubelets dial only then, for up to 10 s, and do not report a failure."""
    stable: float = 5.0
    """After which a registration that fails does not count as one more failure in a row."""
    stop: float = GRACE_PERIOD - 1.5
    """From the request to stop to the end of all that ends then. What is overdue then is logged and left."""
    first_pause: float = 0.1
    """Before a retry of a registration; doubles each time."""
    longest_pause: float = 15.0
    """Upper limit of this pause. A new kubelet.sock ends it at once, so it is for a kubelet that rejects the plugin."""
    patience: float = 20.0
    """For the kubelet to register a DRA driver after the socket appeared, or after its last attempt. The kubelet
    repeats attempts that failed after 0.5 s, and then after twice as long each time."""
    health_period: float = 10.0
    """Between two reports of the health of a DRA driver's devices that does not change."""
    claim_conflict: float = 30.0
    """For which a preparation waits for a device that another claim has: the kubelet waits for 45 s."""
    claim_poll: float = 2.0
    """Between two attempts in that wait, and two questions to the API server whether the other claim still needs the
    device: another process of the driver may release it."""
    claim_slow: float = 3.0
    """After which a claim that is still being prepared is reported."""
    claim_gone: float = 10.0
    """For the kubelet to unprepare a claim that is gone, before that happens without the kubelet: its containers may
    still be ending."""
    claim_verify: float = 2.0
    """For the API server to answer if the claim is prepared already."""
    claim_round: float = 60.0
    """Between two rounds of repairs, and between two questions for a claim that was gone."""
    claim_ask: float = 600.0
    """Between two questions for each claim: requests to the API server, from every node. A claim for whose device
    another one waits is asked for at once anyway."""
    slice_relist: float = 300.0
    """Between two comparisons of the ResourceSlices without a reason: a lost event costs the devices of a node for as
    long, and attributes change without an event."""
    watch_pause: tuple[float, float] = (0.0, 2.0)
    """From the end of a watch of ResourceSlices to the next one; random, because all nodes lose their watches when an
    API server ends."""
    view_interval: float = 30.0
    """Between two questions how many devices the kubelet has, while nothing changes."""
    view_after_registration: float = 2.0
    """From a registration, and from the start or end of another plugin of the resource, to the next question."""
    view_settle: float = 1.0
    """For which the devices must not have changed before the kubelet is asked: it may not have processed them yet."""
    view_pause: float = 120.0
    """From one registration because of the kubelet's answer to the next one."""
    answer: float = 2.0
    """For the kubelet to answer a query of its podresources API."""
    list_interval: float = 3.0
    """Between two List calls of that API."""
    list_patience: float = 0.3
    """For which a caller waits for a List call in progress before it gets the previous result."""
    recheck: float = 2.5
    """Between two looks at what may change soon, and without an event: whether the kubelet of a DRA driver runs,
    whether the kubelet still has fewer devices than published, whether another plugin of the resource still runs,
    whether claims can be repaired, and whether the Node has the devices."""
    allocations: float = 10.0
    """Between two questions which devices pods have, where a backend or a driver has to know it."""
    publish_wait: float = 5.0
    """After which devices are published although the kubelet has not registered the driver, which takes it about a
    second: a kubelet that does not answer must not keep the API server from knowing the host's devices."""
    first_list: float = 0.2
    """After which HTTP requests are answered although the kubelet does not have the devices yet."""
    state: float = 1.0
    """Between two readings of the state of the resources, for systemd and for the Node."""
    event_delay: float = 5.0
    """From a change of the devices to its Event, which has all changes until then."""
    event_pause: float = 60.0
    """Between two requests of the same Event."""
    taint_settled: float = 600.0
    """Between two requests of a Node that is done: it may have been deleted, and created again with the taint."""
    feature_lifetime: float = 3600.0
    """After which NFD ignores the feature file, unless it is written again."""
    feature_renewal: float = 1200.0
    """After which a feature file that has not changed is written again. NFD reads it every minute by default."""
    leak_scan: float = 60.0
    """After which a leak scan counts as hanging. One of 20,000 descriptors takes 0.1 s, and there is a limit."""


DEFAULT = Timings()


class Clock:
    """The time of the system."""

    def __call__(self) -> float:
        """Return the time in seconds, which is never set back. May be called in any thread."""
        return time.monotonic()

    async def wait(self, *events: asyncio.Event, timeout: float | None = None) -> bool:
        """Wait until one of ``events`` is set; return False if none is after ``timeout`` seconds."""
        return await wait_any(*events, timeout=timeout)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


CLOCK = Clock()


class Stop(asyncio.Event):
    """Set by a request to stop, which has one deadline for all that ends then."""

    def __init__(self, timings: Timings = DEFAULT, clock: Clock = CLOCK) -> None:
        super().__init__()
        self._within = timings.stop
        self._clock = clock
        self._end: float | None = None

    def request(self, within: float | None = None) -> None:
        """Request a stop ``within`` seconds, by default ``Timings.stop``."""
        self._end = self._clock() + (self._within if within is None else within)
        self.set()

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; all of them if no stop is requested."""
        return self._within if self._end is None else max(0.0, self._end - self._clock())


class Backoff:
    """The pauses after failures, one after another: exponentially longer ones up to a cap."""

    def __init__(self, rng: random.Random | None = None, *, first: float = 0.1, cap: float = 3.0) -> None:
        """``first`` and ``cap`` are the shortest and the longest pause, in seconds.

        The default suits requests to the API server: a problem is gone, and a claim is prepared, soon after it is back.
        """
        self._rng = rng or random.Random()  # noqa: S311 - spreads the load
        self._first = self._next = first
        self._cap = cap

    def succeeded(self) -> None:
        """Begin with the shortest pause again."""
        self._next = self._first

    def pause(self, asked: float | None = None) -> float:
        """Return the seconds before the next attempt: at least what a server has ``asked`` for (Retry-After)."""
        pause = self._next * self._rng.uniform(0.5, 1.0)
        self._next = min(2 * self._next, self._cap)
        return pause if asked is None else max(pause, asked * self._rng.uniform(1.0, 1.2))
