"""Pauses between attempts, and requests that are repeated."""

import asyncio
from itertools import pairwise

import pytest

from aosp_plugin.framework.apiserver.client import retry
from aosp_plugin.framework.apiserver.protocol import ApiError, ApiUnavailableError, NotFoundError, Request
from tests.simulation.loop import SimulatedLoop

REQUEST = Request("get", "/api/v1/nodes/a")


def throttled(seconds: float) -> ApiError:
    return ApiError(REQUEST, "429", status=429, retry_after=seconds)


@pytest.mark.parametrize(
    ("errors", "within", "made", "raised"),
    [
        pytest.param([ApiUnavailableError(REQUEST, "away"), throttled(0.0)], 20.0, 3, None, id="transient errors"),
        pytest.param([NotFoundError(REQUEST, "404", status=404)], 20.0, 1, NotFoundError, id="another error"),
        pytest.param([throttled(10.0)], 5.0, 1, ApiError, id="no time for another attempt"),
    ],
)
async def test_a_transient_error_is_tried_again_while_there_is_time(
    errors: list[ApiError], within: float, made: int, raised: type[ApiError] | None
) -> None:
    left, attempts, found = [*errors], 0, None

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        if left:
            raise left.pop(0)

    try:
        await retry(attempt, within)
    except ApiError as error:
        found = type(error)
    assert (attempts, found) == (made, raised)


def test_the_pauses_between_attempts_grow_and_respect_the_server() -> None:
    loop, times = SimulatedLoop(), list[float]()

    async def attempt() -> None:
        times.append(loop.time())
        if len(times) < 8:
            raise throttled(10.0) if len(times) == 7 else ApiUnavailableError(REQUEST, "away")

    loop.run_until_complete(retry(attempt, 45.0))
    loop.close()
    *pauses, asked = (later - earlier for earlier, later in pairwise(times))
    assert all(0.05 * 2**number <= pause <= 0.1 * 2**number for number, pause in enumerate(pauses[:5]))
    assert 10.0 <= asked <= 12.0


async def test_the_last_error_is_raised_when_an_attempt_hangs() -> None:
    errors = [ApiUnavailableError(REQUEST, "away")]

    async def attempt() -> None:
        if errors:
            raise errors.pop()
        await asyncio.Event().wait()

    with pytest.raises(ApiUnavailableError, match="away"):
        await retry(attempt, 0.3)
