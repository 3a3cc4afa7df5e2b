"""Calls in a worker thread: results, order, deadlines, cancellation, and what outlives the event loop."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from aosp_plugin.framework.conditions import SCAN_HANGS, Conditions
from aosp_plugin.framework.errors import WorkerTimeoutError
from aosp_plugin.framework.service.logs import RESOURCE, working_for
from aosp_plugin.framework.timing import background_task
from aosp_plugin.framework.worker import Worker, report_hangs, running_calls
from tests.simulation.loop import SimulatedLoop
from tests.support import PATIENCE


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Return a worker."""
    worker = Worker("test")
    yield worker
    worker.close()


class BlockedCall:
    """A call that blocks until a test ends it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error
        self._started, self._go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        """Block."""
        self._started.set()
        assert self._go.wait(PATIENCE)
        if self._error is not None:
            raise self._error
        return "done"

    async def started(self) -> None:
        """Wait until the call runs."""
        assert await asyncio.to_thread(self._started.wait, PATIENCE)

    def finish(self) -> None:
        """Let the call return."""
        self._go.set()


async def test_calls_run_one_after_another_in_one_daemon_thread(worker: Worker) -> None:
    first, ran = BlockedCall(), list[threading.Thread]()
    calls = [worker.run(first), *(worker.run(lambda: ran.append(threading.current_thread())) for _ in range(2))]
    running = asyncio.gather(*calls)
    await first.started()
    assert ran == []
    first.finish()
    assert (await running)[0] == "done"
    assert ran[0] is ran[1]
    assert (ran[0].name, ran[0].daemon) == ("test", True)


async def test_error_of_a_call_is_raised_in_the_caller(worker: Worker) -> None:
    def fail(error: BaseException) -> None:
        raise error

    for error in (OSError("away"), SystemExit("odd")):
        with pytest.raises(type(error)) as raised:
            await worker.run(partial(fail, error))
        assert raised.value is error
    assert worker.running() is None


async def test_call_has_the_context_of_its_caller(worker: Worker) -> None:
    for name in ("example.com/a", "example.com/b"):
        with working_for(name):
            assert await worker.run(RESOURCE.get) == name
    assert await worker.run(RESOURCE.get) == ""


async def test_deadline_drops_the_result_of_a_running_call_and_cancels_a_waiting_one(worker: Worker) -> None:
    """The next call waits for the one that still runs."""
    blocked, ran = BlockedCall(), list[str]()
    scan = asyncio.ensure_future(worker.run(blocked, 1.0, label="scan"))
    await blocked.started()
    with pytest.raises(WorkerTimeoutError, match=r"^scan timed out after 1 s$"):
        await scan
    with pytest.raises(
        WorkerTimeoutError, match=r"^close timed out after 0\.01 s because of a scan that has not ended"
    ):
        await worker.run(partial(ran.append, "cancelled"), 0.01, label="close")
    following = asyncio.ensure_future(worker.run(partial(ran.append, "following")))
    blocked.finish()
    await following
    assert ran == ["following"]


@pytest.mark.parametrize("error", [None, OSError("away")])
async def test_cancelled_caller_does_not_stop_a_running_call(
    worker: Worker, error: OSError | None, loop_errors: list[object]
) -> None:
    """Its result or error is dropped silently. A call that has not started never runs."""
    blocked, ran = BlockedCall(error), list[str]()
    calls = [
        asyncio.ensure_future(worker.run(blocked)),
        asyncio.ensure_future(worker.run(partial(ran.append, "cancelled"))),
    ]
    await blocked.started()
    for call in calls:
        call.cancel()
    assert [type(result) for result in await asyncio.gather(*calls, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    assert worker.running()
    blocked.finish()
    await worker.run(partial(ran.append, "following"))
    assert ran == ["following"]
    gc.collect()
    assert loop_errors == []


async def test_running_call_is_reported_until_it_ends(worker: Worker) -> None:
    assert worker.running() is None
    blocked = BlockedCall()
    call = asyncio.ensure_future(worker.run(blocked, label="device scan"))
    await blocked.started()
    assert (worker.running() or ("",))[0] == "device scan"
    assert [text for text in running_calls() if text.startswith("device scan of test for ")]
    blocked.finish()
    await call
    assert worker.running() is None


def test_a_call_is_a_condition_from_the_time_limit_to_its_end() -> None:
    loop, conditions = SimulatedLoop(), Conditions()
    calls: Any = SimpleNamespace(name="a", running=lambda: ("scan", loop.time()) if loop.time() < 20 else None)

    async def reported_at(*times: float) -> list[str]:
        reported = []
        async with background_task(report_hangs(calls, conditions, "", 10.0, lambda _: SCAN_HANGS)):
            for each in times:
                await asyncio.sleep(each - loop.time())
                reported.append(" ".join(condition.detail for condition in conditions.of("")))
        return reported

    hangs = "scan has been hanging for more than 10 s"
    assert loop.run_until_complete(reported_at(9.9, 10.1, 19.9, 22.6)) == ["", hangs, hangs, ""]
    loop.close()
