"""The benchmark's arithmetic, whose errors would not show in its results."""

from __future__ import annotations

import random

import pytest

from tests.bench import contestants, figures, fleet
from tests.bench.contestants import Contestant
from tests.bench.figures import Samples, summary
from tests.bench.trial import trial


def test_summary_uses_the_unit_of_the_figure() -> None:
    assert summary([0.003], 1e3) == (1, 3, 3, 3)
    assert summary([number / 1e3 for number in range(1000)], 1e3) == (1000, 499.5, 990, 999)


def test_cell_shows_the_tail_that_the_samples_allow() -> None:
    """A cell has the p99 of 100 samples or more, the maximum of less, and a single sample alone."""
    assert str(summary([1.5])) == "1.5"
    assert str(summary([1.0, 3.0])) == "2 (worst 3)"
    assert str(summary([*range(1, 201)])) == "100 (p99 199)"
    assert str(summary([12_345.6])) == "12,346"


def test_comparison_is_relative_to_a_contestant_of_the_same_run() -> None:
    """The relative column does not depend on the speed of the machine."""
    runs = []
    with trial(Contestant("mine", "true")) as mine, trial(Contestant("floor", "true")) as floor:
        for speed, seconds in ((1.0, 0.004), (2.0, 0.001)):
            samples = Samples()
            samples.add(mine, "allocate", seconds / speed)
            samples.add(floor, "allocate", 0.001 / speed)
            run = samples.run({"mine": "a command"})
            assert figures.read(figures.as_json(run)) == run
            runs.append(run)
    (line,) = [line for line in figures.comparison(runs, "floor").splitlines() if "mine" in line]
    assert line.split()[-6:] == ["4,000", "500", "0.12", "4.00", "->", "1.00"]


def test_command_line_may_contain_braces() -> None:
    parsed = contestants.parse('other=other --dir {kubelet} --device \'{"path":"{devices}/*"}\'')
    assert parsed.arguments("/d", "/k", "char") == ["other", "--dir", "/k", "--device", '{"path":"/d/*"}']
    with pytest.raises(ValueError, match="is not NAME=COMMAND"):
        contestants.parse("other=")


def test_fleet_without_flaps_reports_every_five_minutes() -> None:
    updates = fleet.status_updates(200, 0, 1, 7200, random.Random(1))  # noqa: S311 - a simulation
    assert updates.flaps == 0
    assert updates.status == updates.without
    assert 200 / 320 < updates.status < 200 / 295


def test_flap_between_two_computations_is_not_sent() -> None:
    """The status is sent if it differs from the status of the previous computation."""
    times = [0.0, 10.0, 20.0, 30.0, 40.0]
    assert fleet._sent(times, [(11.0, 12.0)]) == 0
    assert fleet._sent(times, [(9.0, 31.0)]) == 2
    assert fleet._sent(times, [(9.0, 1000.0)]) == 1
