"""The benchmark's own arithmetic; what it measures is nobody's test."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from tests.bench import contestants, figures, fleet, growth
from tests.bench.contestants import Contestant
from tests.bench.figures import FIGURES, Samples, summary
from tests.bench.trial import Trial, trial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.table import Table


@pytest.fixture
def idle() -> Iterator[Trial]:
    """Return a trial whose plugin is not started."""
    with trial(Contestant("mine", "true")) as made:
        yield made


def drawn(table: Table) -> str:
    """Return a table as text."""
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_a_summary_is_in_the_figures_unit() -> None:
    """Median, p99 and worst, of however few samples."""
    assert summary([0.003], 1e3) == (1, 3, 3, 3)
    assert summary([number / 1e3 for number in range(1000)], 1e3) == (1000, 499.5, 990, 999)


def test_a_cell_tells_the_tail_that_so_many_samples_have() -> None:
    """The p99 of a hundred or more, else the worst; of one, nothing else."""
    assert str(summary([1.5])) == "1.5"
    assert str(summary([1.0, 3.0])) == "2 (worst 3)"
    assert str(summary([*range(1, 201)])) == "100 (p99 199)"
    assert str(summary([12_345.6])) == "12,346"


def test_a_run_comes_back_from_its_file(idle: Trial) -> None:
    """What is written is what is compared later."""
    samples = Samples()
    samples.add(idle, "appears", 0.02)
    run = samples.run({"mine": "a command"})
    assert figures.read(figures.as_json(run)) == run
    assert run["contestants"]["mine"]["command"] == "a command"
    with pytest.raises(ValueError, match="no run of format"):
        figures.read("[]")


def test_the_table_has_what_was_measured_beside_the_target(idle: Trial) -> None:
    """And no row for what was not."""
    samples = Samples()
    samples.add(idle, "appears", 0.02)
    text = drawn(figures.table(samples.run({})))
    assert "node appears to message, ms" in text
    assert "median 25, worst 100" in text
    assert "20" in text
    assert "SIGTERM" not in text


def test_two_runs_are_compared_by_what_both_have(idle: Trial) -> None:
    """Also relative to another contestant of the same run: the machine may have been twice as fast."""
    runs = []
    with trial(Contestant("floor", "true")) as floor:
        for speed, own in ((1.0, 0.004), (2.0, 0.001)):
            samples = Samples()
            samples.add(idle, "allocate", own / speed)
            samples.add(floor, "allocate", 0.001 / speed)
            runs.append(samples.run({}))
    (line,) = [line for line in drawn(figures.comparison(runs, "floor")).splitlines() if "mine" in line]
    assert "4,000" in line
    assert "500" in line
    assert "0.12" in line
    assert "4.00 -> 1.00" in line


def test_every_figure_has_a_title_of_its_own() -> None:
    """It is what tells the rows apart."""
    assert len({(figure.title, figure.unit) for figure in FIGURES.values()}) == len(FIGURES)


def test_a_plugin_is_given_by_its_command_line() -> None:
    """With places for the directories, and braces of its own."""
    parsed = contestants.parse('other=other --dir {kubelet} --device \'{"path":"{devices}/*"}\'')
    assert parsed.name == "other"
    assert parsed.arguments("/d", "/k", "char") == ["other", "--dir", "/k", "--device", '{"path":"/d/*"}']
    for wrong in ("other", "=other", "other="):
        with pytest.raises(ValueError, match="is not NAME=COMMAND"):
            contestants.parse(wrong)


ROWS = [growth.Row(10**power, 10**power, 0.1, 250.0, 50.0, 15.0, 20.0, 0.5) for power in (3, 4, 5)]


def test_growth_is_kept_drawn_and_plotted(tmp_path: Path) -> None:
    """The rows come back from their file, which the command makes a table and a plot of each cost of."""
    rows, plot = tmp_path / "rows.json", tmp_path / "plot.svg"
    rows.write_text(growth.as_json(ROWS), encoding="utf-8")
    assert growth.read(rows.read_text(encoding="utf-8")) == ROWS
    command = [sys.executable, "-m", "tests.bench", "growth", "--from", str(rows), "--plot", str(plot)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own
    assert "100,000" in done.stdout
    drawing = plot.read_text(encoding="utf-8")
    for text in ("<svg", "start, ms", "memory, MB", "hotplug, ms", "Allocate, ms", "100k"):
        assert text in drawing


def test_a_calm_fleet_reports_every_five_minutes() -> None:
    """A host that nothing happens to costs a request in 300 s, and a little less for jitter."""
    updates = fleet.status_updates(200, 0, 1, 7200, random.Random(1))  # noqa: S311 - a simulation
    assert updates.flaps == 0
    assert updates.status == updates.without
    assert 200 / 320 < updates.status < 200 / 295


def test_flapping_costs_no_more_than_a_request_in_ten_seconds() -> None:
    """However often a host's nodes come and go."""
    rng = random.Random(2)  # noqa: S311 - a simulation
    rates = [fleet.status_updates(100, flaps, 0.5, 1200, rng) for flaps in (1, 60, 3600)]
    assert [rate.status for rate in rates] == sorted(rate.status for rate in rates)
    assert all(rate.status <= 100 / fleet.STATUS_PERIOD * 1.01 for rate in rates)
    assert rates[-1].flaps > 10 * rates[-1].status


def test_a_flap_between_two_looks_is_never_told() -> None:
    """What is told is the state at a look, where it is another than at the last one."""
    looks = [0.0, 10.0, 20.0, 30.0, 40.0]
    assert fleet._sent(looks, [(11.0, 12.0)]) == 0
    assert fleet._sent(looks, [(9.0, 31.0)]) == 2
    assert fleet._sent(looks, [(9.0, 1000.0)]) == 1
