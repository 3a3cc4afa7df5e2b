"""Threads in which a gRPC server answers its requests."""

from __future__ import annotations

import collections
import logging
import threading
import time
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger(__name__)

PLACES = 2
"""Requests that are answered at a time. Python runs one thread at a time; with more of them, each answer is interrupted
by the others. Measured with eight callers: with two, Allocate takes two thirds of the processor time."""

LONGEST_WAIT = 0.02
"""Seconds that a request waits for a place. Then those with the places count as blocked, and all that wait start."""

MAX_IDLE = 4
"""Threads that wait for the next request. Further ones end: a burst of requests may need hundreds."""

_DONE: Future[Any] = Future()
_DONE.set_result(None)

Job = partial[Any]
Inbox = SimpleQueue["Job | None"]
"""Passes functions to one thread; None ends it."""

_current = threading.local()


def leave_place() -> None:
    """Let the next request run now, because this one is about to wait. No effect in a thread of another kind."""
    if leave := getattr(_current, "leave", None):
        leave()


class RequestThreads(Executor):
    """Runs ``PLACES`` functions at a time, and those that block besides, however many there are.

    Streams and PreStartContainer block after ``leave_place``, and delay nothing. A function may also block before its
    handler is called: gRPC waits there for the message, which a client need not send. Whatever the others do, no
    function waits longer than ``LONGEST_WAIT`` until a thread of its own is started.

    The next function runs in the thread that became idle last. One caller after another is served by the same thread,
    whose stack is in the processor's cache: measured with grpcio 1.85, Allocate takes 0.7 times as long as with a
    ThreadPoolExecutor, which lets ten threads take turns.

    All threads are daemon threads: a request that hangs does not keep the process from its end.
    """

    def __init__(self, name: str) -> None:
        """``name`` is the name of the threads."""
        self._name = name
        self._lock = threading.Lock()  # for all of the next, and never held while a function runs or a thread starts
        self._max_idle = MAX_IDLE
        self._idle: list[Inbox] = []
        self._starting = 0
        self._places: set[Inbox] = set()  # the threads whose functions have a place
        self._waiting: collections.deque[tuple[float, Job]] = collections.deque()  # each with the time of its submit
        self._overdue = 0  # how many of them, the first ones, run without a place
        self._watched = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function. The future is done from the start: gRPC requires nothing else (grpc/_server.py).

        If the process may not start another thread, the function waits for one of those that exist to become idle, or
        for a later ``submit`` that can start one.
        """
        with self._lock:
            self._waiting.append((time.monotonic(), partial(fn, *args, **kwargs)))
        self._pass_waiting()
        return _DONE

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Let each thread end when its function has ended; wait for none."""
        with self._lock:
            self._max_idle = 0
            while self._idle:
                self._idle.pop().put(None)

    def _pass_waiting(self) -> None:
        """Let threads take the functions that may run, and have the others watched.

        A function waits in its turn until a thread takes it, so that any thread finds it if no other one can start.
        """
        while (run := self._missing_thread()) is not None:
            try:
                threading.Thread(target=run, name=self._name, daemon=True).start()
            except RuntimeError as error:
                if self._wait_for_threads(run):
                    LOG.warning("request waits for a thread", extra={"error": str(error)})
                    return

    def _missing_thread(self) -> Callable[[], None] | None:
        """Pass functions to idle threads; return what another thread has to run, if there are not enough."""
        with self._lock:
            while self._idle and (job := self._take(self._idle[-1])):
                self._idle.pop().put(job)
            ready = min(len(self._waiting), self._overdue + max(0, PLACES - len(self._places)))
            if ready > self._starting:
                self._starting += 1
                return self._run
            if len(self._waiting) > ready and not self._watched:
                self._watched = True
                return self._watch
        return None

    def _wait_for_threads(self, run: Callable[[], None]) -> bool:
        """Let any thread take what waits, because ``run`` has none; return whether there is no idle one for it."""
        with self._lock:
            if run == self._watch:
                self._watched = False
            else:
                self._starting -= 1
            self._overdue = len(self._waiting)
            return bool(self._waiting) and not self._idle

    def _take(self, inbox: Inbox) -> Job | None:
        """Return the next function for a thread, if one may run. To be called with the lock."""
        if self._overdue:
            self._overdue -= 1
        elif self._waiting and len(self._places) < PLACES:
            self._places.add(inbox)
        else:
            return None
        return self._waiting.popleft()[1]

    def _run(self) -> None:
        """Run what waits and what is passed, until there are enough idle threads."""
        inbox: Inbox = SimpleQueue()
        _current.leave = partial(self._leave, inbox)
        with self._lock:
            self._starting -= 1
        while job := self._next(inbox):
            job()
            del job  # an idle thread must not keep the last request

    def _next(self, inbox: Inbox) -> Job | None:
        """Return the next function for a thread that runs none; None if the thread is not needed any more."""
        with self._lock:
            self._places.discard(inbox)
            if job := self._take(inbox):
                return job
            if len(self._idle) >= self._max_idle:
                return None
            self._idle.append(inbox)
        return inbox.get()

    def _leave(self, inbox: Inbox) -> None:
        """Take the place of a thread whose function is about to wait."""
        with self._lock:
            self._places.discard(inbox)
        self._pass_waiting()

    def _watch(self) -> None:
        """Let all functions that wait run if the first one has waited too long, as long as any wait for a place."""
        while (seconds := self._until_overdue()) is not None:
            if seconds <= 0:
                self._pass_waiting()
            else:
                time.sleep(seconds)

    def _until_overdue(self) -> float | None:
        """Return the seconds until functions are overdue, or were just now; None, and no more watch, if none waits."""
        with self._lock:
            if len(self._waiting) <= self._overdue:
                self._watched = False
                return None
            seconds = self._waiting[self._overdue][0] + LONGEST_WAIT - time.monotonic()
            if seconds <= 0:
                self._places.clear()
                self._overdue = len(self._waiting)
            return seconds
