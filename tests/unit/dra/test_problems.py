"""Problems of a DRA driver that last."""

from __future__ import annotations

import logging

import pytest

from aosp_plugin.framework.apiserver.errors import (
    ApiUnavailableError,
    ForbiddenError,
    NotFoundError,
    Request,
)
from aosp_plugin.framework.dra.problems import Problems

PURPOSE = "list of ResourceSlices"
REQUEST = Request("list", "/apis/resource.k8s.io/v1/resourceslices")


def test_a_problem_is_logged_when_it_begins_changes_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    problems = Problems()
    problems.set(PURPOSE, "")
    problems.failed(PURPOSE, ApiUnavailableError(REQUEST, "cannot connect"))
    problems.failed(PURPOSE, ApiUnavailableError(REQUEST, "the server did not answer in time"))
    assert problems.texts == [f"{PURPOSE} failed: API server: {REQUEST}: the server did not answer in time"]
    problems.failed(PURPOSE, ForbiddenError(REQUEST, "403", status=403))
    problems.set(PURPOSE, "")
    problems.set(PURPOSE, "")
    assert not problems.texts
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]


def test_problems_of_several_things_last_side_by_side() -> None:
    problems = Problems()
    problems.set("first", "one")
    problems.set("second", "two")
    problems.set("first", "")
    assert problems.texts == ["two"]


def test_a_request_within_the_context_begins_and_ends_its_problem() -> None:
    problems = Problems()
    with pytest.raises(NotFoundError), problems.of(PURPOSE, "the cluster is too old"):
        raise NotFoundError(REQUEST, "404", status=404)
    assert problems.texts == ["the cluster is too old"]
    with problems.of(PURPOSE):
        pass
    assert not problems.texts
