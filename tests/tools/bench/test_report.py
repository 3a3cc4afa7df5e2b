"""A benchmark's run as Markdown, and in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench import report
from tests.bench.__main__ import bench
from tests.bench.contestants import EMPTY_HANDLERS, OURS
from tests.bench.machine import Load
from tests.bench.run import FORMAT, Repetition, Run, as_json
from tests.bench.samples import Summary

ROOT = Path(__file__).resolve().parents[3]
PEER = "peer"
THREADS = EMPTY_HANDLERS[1].name


def summaries(**medians: float) -> dict[str, Summary]:
    return {key: Summary(100, median, 2 * median, 3 * median) for key, median in medians.items()}


@pytest.fixture
def run() -> Run:
    """Three repetitions: this plugin, a peer that cannot list 100,000 devices, and an empty plugin."""
    repetitions = [
        Repetition(
            Load((0.1, 0.2, 0.3), (1.0, 0.5, 0.3), others_before=0.01, others=0.02, seconds=300.0),
            {
                OURS: summaries(listed=listed, allocate=0.0004, appears=0.016, listed_100000=0.9),
                PEER: summaries(listed=0.07, allocate=0.0002, appears=4.6),
                THREADS: summaries(listed=0.1, allocate=0.0004, listed_100000=0.5),
            },
            {PEER: {"listed_100000": "TimeoutError: not listed"}},
        )
        for listed in (0.15, 0.17, 0.14)
    ]
    machine: dict[str, str | int] = {"processors": 2, "kernel": "6.18", "python": "3.11", "grpcio": "1.85"}
    return Run(FORMAT, machine, {OURS: "serve", PEER: "peer", THREADS: "empty"}, repetitions)


def test_the_ratios_come_before_the_medians(run: Run) -> None:
    text = report.report(run)
    assert text.index("| ratio to the empty plugin |") < text.index("| median (least to most) |")


def test_a_cell_has_median_least_and_most(run: Run) -> None:
    assert "| start to 10,000 devices listed, ms | 1.6 x | 1.5 x (1.4 to 1.7) | 0.7 x (0.7 to 0.7) |" in (
        report.ratio_table(run)
    )
    assert "| start to 10,000 devices listed, ms | 1.6 x | 150 (140 to 170) | 70 (70 to 70) | 100 (100 to 100) |" in (
        report.figure_table(run)
    )


def test_a_figure_that_a_contestant_cannot_reach_is_never(run: Run) -> None:
    row = next(line for line in report.figure_table(run).splitlines() if "100,000" in line)
    assert row.split(" | ")[3] == "never"
    assert "- peer, `listed_100000`: TimeoutError: not listed (3 times)" in report.report(run)


def test_an_empty_plugin_has_an_empty_cell_for_what_it_was_not_asked_for(run: Run) -> None:
    row = next(
        line for line in report.figure_table(run).splitlines() if line.startswith("| device appears to message, ms")
    )
    assert row.endswith(" | |")


def test_a_verdict_tells_how_many_repetitions_agree(run: Run) -> None:
    rows = {line.split(" | ")[0].strip("| "): line for line in report.targets(run).splitlines()}
    assert rows["start to 10,000 devices listed"].endswith("| reached in 2 of 3 |")
    assert rows["device appears to message"].endswith("| reached |")
    assert rows["start to 100,000 devices listed"].endswith("| reached |")
    assert rows["Allocate of 3 devices, one caller, p50"].endswith("| reached |")


def test_a_missed_target_is_bold(run: Run) -> None:
    for repetition in run.repetitions:
        repetition.contestants[OURS]["listed"] = Summary(9, 0.2, 0.2, 0.2)
    assert "| **missed** |" in report.targets(run)


def test_the_readme_has_medians_and_no_earlier_version(run: Run) -> None:
    run.commands["before"] = "serve"
    header, _line, *rows = report.readme_table(run).splitlines()
    assert header == "| | this plugin | peer |"
    assert "| device appears to message | 16 ms | 4,600 ms |" in rows


def test_the_conditions_have_the_load_of_each_repetition(run: Run) -> None:
    text = report.conditions(run)
    assert text.count("load average 0.10 0.20 0.30 at the start, 1.00 0.50 0.30 at the end") == 3
    assert "not idle" not in text


def test_the_conditions_warn_of_a_machine_that_was_not_idle(run: Run) -> None:
    run.repetitions[1].load.others = 0.4
    assert "**The machine was not idle**: repetition 2: other processes used 40% of one processor." in (
        report.conditions(run)
    )


def test_the_results_replace_the_previous_ones_in_a_document() -> None:
    document = "a\n<!-- bench: x -->\nold\n<!-- bench: end -->\nb\n<!-- bench: y -->\nother\n<!-- bench: end -->\n"
    assert report.insert(document, "x", "new \\1") == document.replace("old", "new \\1")


def test_a_document_without_the_place_is_rejected() -> None:
    with pytest.raises(ValueError, match="bench: z"):
        report.insert("text", "z", "new")


def test_the_documents_have_a_place_for_all_results(run: Run) -> None:
    benchmark = report.fill_benchmark((ROOT / "docs/benchmark.md").read_text(encoding="utf-8"), run)
    readme = report.fill_readme((ROOT / "README.md").read_text(encoding="utf-8"), run)
    for part in (report.conditions, report.targets, report.ratio_table, report.figure_table):
        assert part(run) in benchmark
    assert report.readme_table(run) in readme
    assert len(readme.splitlines()) <= 200


def test_a_saved_run_is_printed(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(as_json(run))
    result = CliRunner().invoke(bench, ["render", str(file)])
    assert result.output == report.report(run) + "\n"
