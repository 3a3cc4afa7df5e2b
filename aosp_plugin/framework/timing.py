"""Time and waiting in the event loop: durations, the clock, the request to stop, pauses, and waits for events."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import NamedTuple, TypeVar

T = TypeVar("T")

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


@contextlib.asynccontextmanager
async def background_task(work: Coroutine[None, None, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run ``work`` as a task inside the context, and cancel it at the end.

    An error of the task is only raised if the caller awaits the task.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # mark it as retrieved, or asyncio would log it


async def wait_any(*events: asyncio.Event, timeout: float | None = None) -> bool:
    """Wait until one of ``events`` is set; return False if none is after ``timeout`` seconds."""
    if any(event.is_set() for event in events):
        return True
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)  # leave no task behind
    return bool(done)


async def complete_unless(stop: asyncio.Event, work: Coroutine[None, None, object]) -> bool:
    """Run ``work`` to its end, or cancel it when ``stop`` is set. Return whether it has completed; raises its error.

    Work that completes although ``stop`` is set has completed: it may have started what the caller has to stop.
    """
    async with background_task(stop.wait()) as stopped, background_task(work) as task:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if task.cancelled():
        return False
    task.result()
    return True


def call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Call a function in the event loop soon, in any thread; not at all if the event loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


async def debounce(changed: asyncio.Event, quiet: float, cap: float) -> None:
    """Wait until ``changed`` has not been set for ``quiet`` seconds, but no longer than ``cap`` seconds.

    Clears the event: a change after the return sets it again.
    """
    end = asyncio.get_running_loop().time() + cap
    while True:
        changed.clear()
        remaining = end - asyncio.get_running_loop().time()
        if remaining <= 0 or not await wait_any(changed, timeout=min(quiet, remaining)):
            return


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
