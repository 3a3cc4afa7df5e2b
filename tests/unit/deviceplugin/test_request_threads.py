"""The threads of a gRPC server: which thread runs a function, and what happens if there can be no further thread."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.framework.deviceplugin.request_threads import MAX_IDLE, RequestThreads

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 30.0


class Requests:
    """Functions that wait until the test lets them go on, and the threads that run them."""

    def __init__(self, threads: RequestThreads) -> None:
        self._threads = threads
        self._started: SimpleQueue[threading.Thread] = SimpleQueue()

    def start(self) -> threading.Event:
        """Submit a function; return the event that it waits for."""
        go_on = threading.Event()

        def run() -> None:
            self._started.put(threading.current_thread())
            go_on.wait(PATIENCE)

        self._threads.submit(run)
        return go_on

    def thread(self) -> threading.Thread:
        """Return the thread of the function that has started next."""
        return self._started.get(timeout=PATIENCE)


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


def idle(threads: RequestThreads, count: int) -> None:
    """Wait until so many threads are idle."""
    while len(threads._idle) != count:
        pass


def test_functions_that_block_delay_no_other_one(requests: Requests) -> None:
    going_on = [requests.start() for _ in range(100)]
    assert len({requests.thread() for _ in going_on}) == 100
    for event in going_on:
        event.set()


def test_one_function_after_another_runs_in_the_same_thread(threads: RequestThreads, requests: Requests) -> None:
    used = set()
    for _ in range(20):
        requests.start().set()
        used.add(requests.thread())
        idle(threads, 1)
    assert len(used) == 1


def test_threads_of_a_burst_end(threads: RequestThreads, requests: Requests) -> None:
    going_on = [requests.start() for _ in range(20)]
    burst = [requests.thread() for _ in going_on]
    for event in going_on:
        event.set()
    idle(threads, MAX_IDLE)
    while sum(thread.is_alive() for thread in burst) > MAX_IDLE:
        pass


def test_function_waits_if_there_can_be_no_further_thread(
    requests: Requests, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit may be that of the pod (pids.max). An error would end gRPC's own thread, and so the server."""
    first = requests.start()
    requests.thread()

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        second = requests.start()
    assert [record.getMessage() for record in caplog.records] == ["request waits for a thread"]
    first.set()
    requests.thread()
    second.set()


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
