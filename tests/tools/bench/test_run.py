"""Medians, spreads, ratios and verdicts of a benchmark's run."""

from __future__ import annotations

import pytest

from tests.bench.contestants import EMPTY_HANDLERS, OURS
from tests.bench.figures import Figure, Target
from tests.bench.machine import Load
from tests.bench.run import FORMAT, Repetition, Run, as_json, failed, ratios, reached, read, spread, values
from tests.bench.samples import Samples, Summary, summary

ASYNCIO, THREADS = (handler.name for handler in EMPTY_HANDLERS)
START = Figure("start", "ms", "start", 1e3, Target(ratio=1.6))


def run(key: str, *repetitions: dict[str, float]) -> Run:
    """Return a run whose contestants have these medians of the samples ``key``; the p99 is ten times the median."""
    load = Load((0.1, 0.1, 0.1))
    contestants = [
        {name: {key: Summary(100, median, 10 * median, 20 * median)} for name, median in repetition.items()}
        for repetition in repetitions
    ]
    return Run(FORMAT, {}, {}, [Repetition(load, by_name) for by_name in contestants])


def test_a_summary_has_median_p99_and_maximum_in_the_figures_unit() -> None:
    assert summary([number / 1000 for number in range(200, 0, -1)], 1e3) == Summary(200, 100.5, 199.0, 200.0)


def test_the_p99_of_few_samples_is_their_maximum() -> None:
    assert summary([3.0, 1.0, 2.0]) == Summary(3, 2.0, 3.0, 3.0)


def test_a_spread_has_the_median_of_the_repetitions_and_their_extremes() -> None:
    assert spread([5.0, 1.0, 2.0]) == (2.0, 1.0, 5.0, 3)
    assert spread([]) is None


def test_values_have_the_figures_unit_and_omit_repetitions_without_samples() -> None:
    measured = run("start", {OURS: 0.3}, {THREADS: 0.1}, {OURS: 0.2})
    assert values(measured, OURS, START) == [300.0, 200.0]


def test_a_ratio_refers_to_the_better_empty_plugin_of_its_own_repetition() -> None:
    measured = run("start", {OURS: 0.3, ASYNCIO: 0.1, THREADS: 0.2}, {OURS: 0.3, ASYNCIO: 0.6, THREADS: 0.2})
    assert ratios(measured, OURS, START) == [pytest.approx(3.0), pytest.approx(1.5)]


def test_the_better_empty_plugin_of_a_rate_is_that_with_more_calls() -> None:
    rate = Figure("calls", "calls/s", "calls", target=Target(ratio=0.85), rate=True)
    measured = run("calls", {OURS: 5000.0, ASYNCIO: 4000.0, THREADS: 8000.0})
    assert ratios(measured, OURS, rate) == [0.625]
    assert reached(measured, rate) == [False, False]


def test_a_p99_is_compared_with_the_p99_of_the_plugin_that_has_the_better_median() -> None:
    tail = Figure("p99", "us", "call", target=Target(ratio=1.3), statistic="p99")
    measured = run("call", {OURS: 3.0, ASYNCIO: 2.0, THREADS: 1.0})
    measured.repetitions[0].contestants[THREADS]["call"] = Summary(100, 1.0, 15.0, 99.0)
    assert ratios(measured, OURS, tail) == [2.0]


def test_there_are_no_ratios_without_an_empty_plugin() -> None:
    assert ratios(run("start", {OURS: 0.3}), OURS, START) == []


def test_a_target_is_judged_in_each_repetition_and_by_the_medians() -> None:
    measured = run("start", *({OURS: ours, THREADS: 0.1} for ours in (0.15, 0.17, 0.14)))
    assert reached(measured, START) == [True, False, True, True]


@pytest.mark.parametrize(("ours", "reaches"), [(0.9, True), (2.4, True), (2.6, False)])
def test_of_a_ratio_and_a_limit_the_easier_one_counts(*, ours: float, reaches: bool) -> None:
    either = Figure("start", "ms", "start", 1e3, Target(ratio=2.5, limit=1000))
    assert reached(run("start", {OURS: ours, THREADS: 1.0}), either) == [reaches, reaches]


def test_a_limit_is_judged_without_an_empty_plugin() -> None:
    limited = Figure("prefer", "ms", "prefer", 1e3, Target(limit=2))
    assert reached(run("prefer", {OURS: 0.0019}), limited) == [True, True]
    assert reached(run("prefer", {OURS: 0.0021}), limited) == [False, False]


def test_a_target_is_not_judged_without_the_figure() -> None:
    assert reached(run("start", {THREADS: 0.1}), START) == []


def test_a_failure_is_remembered_with_its_cause() -> None:
    measured = run("start", {THREADS: 0.1})
    measured.repetitions[0].failures = {"peer": {"start": "TimeoutError: not listed"}}
    assert failed(measured, "peer", START)
    assert not failed(measured, OURS, START)


def test_a_file_of_a_run_is_read_as_it_was_written() -> None:
    measured = run("start", {OURS: 0.3, THREADS: 0.2})
    assert read(as_json(measured)) == measured


def test_a_file_of_another_format_is_rejected() -> None:
    with pytest.raises(ValueError, match="format 1"):
        read(as_json(run("start", {OURS: 0.3})).replace(f'"format": {FORMAT}', '"format": 1'))


def test_samples_without_any_sample_have_no_summary() -> None:
    assert Samples().summaries() == {}
