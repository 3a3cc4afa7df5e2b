"""When slices may be written again, and what is logged of problems that last."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from aosp_plugin.framework.apiserver.errors import ApiUnavailableError, ForbiddenError, Request, TooManyRequestsError
from aosp_plugin.framework.dra.lasting_problem import LastingProblem
from aosp_plugin.framework.dra.pacing import AT_ONCE, CALM, CAP, LONGEST_RETRY_PAUSE, Pacing

if TYPE_CHECKING:
    import pytest

    from tests.support import Clock

REQUEST = Request("create", "/apis/resource.k8s.io/v1/resourceslices")
AWAY = ApiUnavailableError(REQUEST, "cannot connect")


def pacing(clock: Clock) -> Pacing:
    return Pacing(clock, random.Random(1))  # noqa: S311 - repeatable


def test_the_first_repairs_are_made_at_once_and_later_ones_after_growing_pauses(clock: Clock) -> None:
    slice_pacing = pacing(clock)
    pauses = []
    for _ in range(AT_ONCE + 12):
        slice_pacing.damaged()
        pauses.append(max(slice_pacing.due - clock.now, 0.0))
        clock.now = max(clock.now, slice_pacing.due)
    assert pauses[:AT_ONCE] == [0.0] * AT_ONCE
    assert 0.1 <= pauses[AT_ONCE] <= 0.2
    assert all(CAP / 2 <= pause <= CAP for pause in pauses[-3:])
    assert slice_pacing.contested


def test_a_fight_is_over_after_a_calm_time(clock: Clock) -> None:
    slice_pacing = pacing(clock)
    for _ in range(AT_ONCE + 5):
        slice_pacing.damaged()
    clock.now += CALM
    assert not slice_pacing.contested
    slice_pacing.damaged()
    assert slice_pacing.due <= clock.now


def test_an_opponent_that_answers_each_repair_at_once_never_looks_calm(clock: Clock) -> None:
    slice_pacing = pacing(clock)
    for _ in range(100):
        slice_pacing.damaged()
        clock.now = max(clock.now, slice_pacing.due) + 1
    assert slice_pacing.contested


def test_failures_lead_to_growing_pauses_until_a_success(clock: Clock) -> None:
    slice_pacing = pacing(clock)
    pause = 0.0
    for _ in range(20):
        slice_pacing.failed(AWAY)
        pause = slice_pacing.due - clock.now
        clock.now = slice_pacing.due
    assert LONGEST_RETRY_PAUSE / 2 <= pause <= LONGEST_RETRY_PAUSE
    slice_pacing.succeeded()
    slice_pacing.failed(AWAY)
    assert slice_pacing.due - clock.now <= 0.1


def test_a_reason_to_try_at_once_ends_the_pause_but_not_what_the_server_asked_for(clock: Clock) -> None:
    slice_pacing = pacing(clock)
    slice_pacing.failed(AWAY)
    slice_pacing.retry_now()
    assert slice_pacing.due <= clock.now
    slice_pacing.failed(TooManyRequestsError(REQUEST, "429", status=429, retry_after=20.0))
    slice_pacing.retry_now()
    assert slice_pacing.due >= clock.now + 20.0


def test_a_reason_to_try_at_once_does_not_end_the_pause_of_a_fight(clock: Clock) -> None:
    slice_pacing = pacing(clock)
    for _ in range(AT_ONCE + 5):
        slice_pacing.damaged()
    due = slice_pacing.due
    slice_pacing.retry_now()
    assert slice_pacing.due == due > clock.now


def test_a_problem_is_logged_when_it_begins_changes_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    problem = LastingProblem("list of ResourceSlices")
    problem.ends()
    problem.failed(AWAY)
    problem.failed(ApiUnavailableError(REQUEST, "the server did not answer in time"))
    assert problem.text == f"list of ResourceSlices failed: API server: {REQUEST}: the server did not answer in time"
    problem.failed(ForbiddenError(REQUEST, "403", status=403))
    problem.ends()
    problem.ends()
    assert not problem.text
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
