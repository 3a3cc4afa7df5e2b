"""How it is learned whether the API server keeps taints."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, cast

import pytest

from aosp_plugin.framework.apiserver.errors import ApiError, ApiUnavailableError, InvalidObjectError, Request
from aosp_plugin.framework.dra.slices import Identity
from aosp_plugin.framework.dra.taint_support import LIFETIME, TaintSupport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.framework.apiserver.client import ApiClient
    from tests.support import Clock

WHO = Identity("phone.aosp.io", "node", "uid")
REQUEST = Request("create", "/apis/resource.k8s.io/v1/resourceslices")


class Api:
    """Answers dry runs."""

    def __init__(self) -> None:
        self.answer: Any = None
        """An error to raise, or a function of the body, or the answer."""

    async def create(self, _path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Any:
        """Simulate the creation of an object."""
        assert dry_run
        if isinstance(self.answer, ApiError):
            raise self.answer
        return body if self.answer is None else self.answer


def support(api: Api, clock: Clock) -> TaintSupport:
    return TaintSupport(cast("ApiClient", api), clock, random.Random(1))  # noqa: S311 - repeatable


async def test_an_answer_with_the_taint_holds_for_an_hour(clock: Clock) -> None:
    taints = support(Api(), clock)
    before = taints.kept, taints.due <= clock.now
    assert before == (False, True)
    await taints.learn(WHO)
    assert taints.kept
    assert taints.due == clock.now + LIFETIME


async def test_a_break_of_the_connection_ends_what_is_known_earlier_but_it_holds_until_the_answer(clock: Clock) -> None:
    taints = support(Api(), clock)
    await taints.learn(WHO)
    taints.ask_again()
    assert taints.due <= clock.now
    assert taints.kept


@pytest.mark.parametrize("answer", [{}, [], {"spec": {}}, {"spec": {"devices": []}}, {"spec": {"devices": [{}]}}])
async def test_an_answer_without_the_taint_means_that_taints_are_dropped(clock: Clock, answer: Any) -> None:
    api = Api()
    taints = support(api, clock)
    await taints.learn(WHO)
    api.answer = answer
    await taints.learn(WHO)
    assert not taints.kept


async def test_without_an_answer_the_last_one_holds_and_the_next_attempt_comes_soon(clock: Clock) -> None:
    api = Api()
    taints = support(api, clock)
    await taints.learn(WHO)
    api.answer = ApiUnavailableError(REQUEST, "cannot connect")
    await taints.learn(WHO)
    assert taints.kept
    assert clock.now < taints.due <= clock.now + 0.1


async def test_a_refused_question_is_not_repeated_for_an_hour(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    api = Api()
    api.answer = InvalidObjectError(REQUEST, "422 Invalid", status=422)
    taints = support(api, clock)
    await taints.learn(WHO)
    assert not taints.kept
    assert taints.due == clock.now + LIFETIME
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "API server refuses the question whether it keeps taints"
    ]


async def test_a_dropped_taint_counts_more_than_an_earlier_answer(clock: Clock) -> None:
    taints = support(Api(), clock)
    await taints.learn(WHO)
    taints.dropped()
    assert not taints.kept
    assert taints.due == clock.now + LIFETIME
