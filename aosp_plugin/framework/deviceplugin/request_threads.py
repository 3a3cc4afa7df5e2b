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
by the others. Measured with eight callers: with two, Allocate takes five sixths of the processor time."""

BLOCKED_AFTER = 0.05
"""Seconds after which a request that has not ended no longer counts as one of these, if others wait."""

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

    A function blocks if it has called ``leave_place``, as streams and PreStartContainer do, or has not returned after
    ``BLOCKED_AFTER``. It therefore delays no other one for longer. The next function runs in the thread that became
    idle last. One caller after another is served by the same thread, whose stack is in the processor's cache: measured
    with grpcio 1.85, Allocate takes 0.7 times as long as with a ThreadPoolExecutor, which lets ten threads take turns.

    All threads are daemon threads: a request that hangs does not keep the process from its end.
    """

    def __init__(self, name: str) -> None:
        """``name`` is the name of the threads."""
        self._name = name
        self._lock = threading.Lock()  # for all of the next, and never held while a function runs
        self._max_idle = MAX_IDLE
        self._idle: list[Inbox] = []
        self._started = 0
        self._places: dict[Inbox, int] = {}  # the threads that run a function, with its number
        self._waiting: collections.deque[Job] = collections.deque()
        self._watched = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function. The future is done from the start: gRPC requires nothing else (grpc/_server.py).

        If the process may not start another thread, the function runs when one of those that exist becomes idle.
        """
        self._pass(partial(fn, *args, **kwargs))
        return _DONE

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Let each thread end when its function has ended; wait for none."""
        with self._lock:
            self._max_idle = 0
            while self._idle:
                self._idle.pop().put(None)

    def _pass(self, job: Job) -> None:
        """Pass a function to a thread; if there is no place, it waits."""
        inbox: Inbox | None = None
        with self._lock:
            if len(self._places) >= PLACES:
                self._waiting.append(job)
                new, self._watched = not self._watched, True
            else:
                new = not self._idle
                inbox = SimpleQueue() if new else self._idle.pop()
                self._take_place(inbox)
                inbox.put(job)
        if new and not self._start(self._watch if inbox is None else partial(self._run, inbox)):
            with self._lock:
                if inbox is None:
                    self._watched = False
                else:
                    self._places.pop(inbox, None)
                    self._waiting.appendleft(job)

    def _take_place(self, inbox: Inbox) -> None:
        """Let a thread have a place. To be called with the lock."""
        self._started += 1
        self._places[inbox] = self._started

    def _start(self, run: Callable[[], None]) -> bool:
        """Start a thread; return False if there is no free one."""
        try:
            threading.Thread(target=run, name=self._name, daemon=True).start()
        except RuntimeError as error:
            LOG.warning("request waits for a thread", extra={"error": str(error)})
            return False
        return True

    def _run(self, inbox: Inbox) -> None:
        """Run what is passed, and what waits, until there are enough idle threads."""
        _current.leave = partial(self._leave, inbox)
        job = inbox.get()
        while job is not None:
            job()
            job = None  # an idle thread must not keep the last request
            job = self._next(inbox)

    def _next(self, inbox: Inbox) -> Job | None:
        """Return the next function for a thread that has run one; None if the thread is not needed any more."""
        with self._lock:
            self._places.pop(inbox, None)
            if self._waiting and len(self._places) < PLACES:
                self._take_place(inbox)
                return self._waiting.popleft()
            if len(self._idle) >= self._max_idle:
                return None
            self._idle.append(inbox)
        return inbox.get()

    def _leave(self, inbox: Inbox) -> None:
        """Take the place of a thread whose function is about to wait."""
        with self._lock:
            self._places.pop(inbox, None)
        self._pass_waiting()

    def _pass_waiting(self) -> None:
        """Pass as many functions as there are places."""
        with self._lock:
            count = min(len(self._waiting), PLACES - len(self._places))
            jobs = [self._waiting.popleft() for _ in range(count)]
        for job in jobs:
            self._pass(job)

    def _watch(self) -> None:
        """Take the places of functions that block, as long as others wait."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._watched = False
                    return
                before = self._places.copy()
            time.sleep(BLOCKED_AFTER)
            with self._lock:
                for inbox, number in before.items():
                    if self._places.get(inbox) == number:
                        del self._places[inbox]
            self._pass_waiting()
