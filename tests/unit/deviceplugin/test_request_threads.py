"""The threads of a gRPC server: which thread runs a function, and what happens if there can be no further thread."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.framework.deviceplugin import request_threads
from aosp_plugin.framework.deviceplugin.request_threads import MAX_IDLE, PLACES, RequestThreads, leave_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 30.0


class Requests:
    """Functions that wait until the test lets them go on, and the threads that run them."""

    def __init__(self, threads: RequestThreads) -> None:
        self._threads = threads
        self._started: SimpleQueue[threading.Thread] = SimpleQueue()

    def start(self, *, leave: bool = False) -> threading.Event:
        """Submit a function; return the event that it waits for. It leaves its place before that if ``leave``."""
        go_on = threading.Event()

        def run() -> None:
            if leave:
                leave_place()
            self._started.put(threading.current_thread())
            go_on.wait(PATIENCE)

        self._threads.submit(run)
        return go_on

    def thread(self) -> threading.Thread:
        """Return the thread of the function that has started next."""
        return self._started.get(timeout=PATIENCE)

    def any_started(self) -> bool:
        """Return whether ``thread`` would return at once."""
        return not self._started.empty()


@pytest.fixture
def threads() -> Iterator[RequestThreads]:
    """Return the threads, and end them."""
    made = RequestThreads("requests of a test")
    yield made
    made.shutdown()


@pytest.fixture
def requests(threads: RequestThreads) -> Requests:
    """Return functions for these threads."""
    return Requests(threads)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a state that nothing reports."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def idle(threads: RequestThreads, count: int) -> None:
    """Wait until so many threads are idle."""
    wait_until(lambda: len(threads._idle) == count)


@pytest.fixture
def no_overdue_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let functions wait for a place without end."""
    monkeypatch.setattr(request_threads, "LONGEST_WAIT", 100 * PATIENCE)


def refuse_threads(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] = lambda: None) -> None:
    """Let no thread start; call ``before`` at each attempt."""

    def fail(_thread: threading.Thread) -> None:
        before()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)


@pytest.mark.usefixtures("no_overdue_functions")
def test_functions_that_leave_their_places_delay_no_other_one(requests: Requests) -> None:
    going_on = [requests.start(leave=True) for _ in range(100)]
    assert len({requests.thread() for _ in going_on}) == 100
    for event in going_on:
        event.set()


def test_functions_that_block_all_get_a_thread(requests: Requests, threads: RequestThreads) -> None:
    """Also if no further request arrives; and once none waits, no thread watches them."""
    going_on = [requests.start() for _ in range(100)]
    assert len({requests.thread() for _ in going_on}) == 100
    wait_until(lambda: not threads._watched)
    for event in going_on:
        event.set()


@pytest.mark.usefixtures("no_overdue_functions")
def test_functions_wait_for_a_place(threads: RequestThreads, requests: Requests) -> None:
    running = [requests.start() for _ in range(PLACES)]
    both = {requests.thread() for _ in running}
    waiting = requests.start()
    assert not requests.any_started()
    running[0].set()
    assert requests.thread() in both
    running[1].set()
    waiting.set()
    idle(threads, PLACES)


@pytest.mark.usefixtures("no_overdue_functions")
def test_functions_run_in_their_order(threads: RequestThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each leaves its place while others arrive and end."""
    monkeypatch.setattr(request_threads, "PLACES", 1)
    order: list[int] = []
    ended = threading.Event()

    def run(number: int) -> None:
        order.append(number)
        leave_place()

    for number in range(3000):
        threads.submit(run, number)
    threads.submit(ended.set)
    assert ended.wait(PATIENCE)
    assert order == [*range(3000)]


def test_other_threads_have_no_place_to_leave() -> None:
    leave_place()


def test_one_function_after_another_runs_in_the_same_thread(threads: RequestThreads, requests: Requests) -> None:
    used = set()
    for _ in range(20):
        requests.start().set()
        used.add(requests.thread())
        idle(threads, 1)
    assert len(used) == 1


def test_threads_of_a_burst_end(threads: RequestThreads, requests: Requests) -> None:
    going_on = [requests.start(leave=True) for _ in range(20)]
    burst = [requests.thread() for _ in going_on]
    for event in going_on:
        event.set()
    idle(threads, MAX_IDLE)
    wait_until(lambda: sum(thread.is_alive() for thread in burst) <= MAX_IDLE)


@pytest.mark.parametrize("running", [1, PLACES])
def test_function_waits_if_there_can_be_no_further_thread(
    running: int, requests: Requests, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit may be that of the pod (pids.max). An error would end gRPC's own thread, and so the server."""
    first = [requests.start() for _ in range(running)]
    for _ in first:
        requests.thread()
    with monkeypatch.context() as patched:
        refuse_threads(patched)
        second = requests.start()
    assert [record.getMessage() for record in caplog.records] == ["request waits for a thread"]
    first[0].set()
    requests.thread()
    for event in [*first, second]:
        event.set()


@pytest.mark.parametrize("running", [1, PLACES])
def test_thread_that_becomes_idle_takes_the_function_that_got_none(
    running: int, requests: Requests, threads: RequestThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes idle during the attempt to start another one."""
    first = [requests.start() for _ in range(running)]
    for _ in first:
        requests.thread()

    def end_first() -> None:
        first[0].set()
        wait_until(lambda: bool(threads._idle) or requests.any_started())

    with monkeypatch.context() as patched:
        refuse_threads(patched, end_first)
        second = requests.start()
    requests.thread()
    for event in [*first, second]:
        event.set()


def test_function_that_waits_for_a_thread_needs_no_place(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in the thread of a stream that ends, although the places are not free."""
    stream = requests.start(leave=True)
    blocked = [requests.start() for _ in range(PLACES)]
    for _ in [stream, *blocked]:
        requests.thread()
    with monkeypatch.context() as patched:
        refuse_threads(patched)
        waiting = requests.start()
    stream.set()
    requests.thread()
    for event in [*blocked, waiting]:
        event.set()


def test_threads_end_at_shutdown_once_their_functions_have_ended(threads: RequestThreads, requests: Requests) -> None:
    running, ended = requests.start(), requests.start()
    all_threads = [requests.thread() for _ in range(2)]
    ended.set()
    idle(threads, 1)
    threads.shutdown()
    running.set()
    for thread in all_threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in all_threads)


def test_future_is_done(threads: RequestThreads) -> None:
    """As gRPC counts it as the end of a request, there may be no limit of concurrent requests."""
    assert threads.submit(int).done()
