"""Pauses between attempts, and requests that are repeated."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from aosp_plugin.framework.apiserver.client import retry
from aosp_plugin.framework.apiserver.protocol import ApiError, ApiUnavailableError, NotFoundError, Request
from aosp_plugin.framework.clock import Backoff

REQUEST = Request("get", "/api/v1/nodes/a")


def throttled(seconds: float) -> ApiError:
    return ApiError(REQUEST, "429", status=429, retry_after=seconds)


class Attempts:
    """Fails with the errors, one after another, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.made = 0
        self._errors = list(errors)

    async def __call__(self) -> int:
        """Fail, or return the number of attempts."""
        self.made += 1
        if self._errors:
            raise self._errors.pop(0)
        return self.made


def test_the_pause_that_the_server_asks_for_is_the_least() -> None:
    backoff = Backoff(random.Random(0), cap=30.0)  # noqa: S311 - repeatable
    assert 5.0 <= backoff.pause(5.0) <= 6.0
    assert all(later >= earlier * 0.99 for earlier, later in pairwise([backoff.pause() for _ in range(8)][::2]))
    backoff.succeeded()
    assert 0 < backoff.pause(0.0) <= 0.1


async def test_a_transient_error_is_tried_again() -> None:
    attempts = Attempts(ApiUnavailableError(REQUEST, "away"), throttled(0.0))
    assert await retry(attempts, 20.0) == 3


async def test_another_error_is_raised_at_once() -> None:
    attempts = Attempts(NotFoundError(REQUEST, "404", status=404))
    with pytest.raises(NotFoundError):
        await retry(attempts, 20.0)
    assert attempts.made == 1


async def test_without_time_for_another_attempt_the_error_is_raised() -> None:
    attempts = Attempts(throttled(10.0))
    with pytest.raises(ApiError, match="429"):
        await retry(attempts, 5.0)
    assert attempts.made == 1


async def test_the_last_error_is_raised_when_an_attempt_hangs() -> None:
    errors = [ApiUnavailableError(REQUEST, "away")]

    async def attempt() -> None:
        if errors:
            raise errors.pop()
        await asyncio.Event().wait()

    with pytest.raises(ApiUnavailableError, match="away"):
        await retry(attempt, 0.3)
