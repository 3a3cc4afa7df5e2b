"""docs/compatibility.md is what the results of the matrix render to, and results.json fits the cells."""

from __future__ import annotations

from tests.matrix import columns, explanations, page, results
from tests.matrix.cell import State
from tests.matrix.output import fits

CELLS = dict(columns.cells())
RESULTS = results.published()


def test_the_committed_page_is_rendered_from_the_committed_results() -> None:
    text = page.render(columns.load(), RESULTS)
    assert page.PAGE.read_text(encoding="utf-8") == text, "run `make matrix MATRIX=render`"
    assert "{{" not in text


def test_each_result_belongs_to_a_cell_and_to_its_command_of_today() -> None:
    assert {name for name, found in RESULTS.items() if list(CELLS[name].command) != found.command} == set()


def test_each_result_reports_the_versions_that_its_cell_expects() -> None:
    wrong = [
        name
        for name, found in RESULTS.items()
        for version, beginning in CELLS[name].expect.items()
        if found.state in {State.PASSED, State.REFUSED} and not fits(found.versions[version], beginning)
    ]
    assert wrong == []


def test_each_failed_item_has_an_explanation_and_each_explanation_a_failed_item() -> None:
    known = explanations.load()
    failures = {name: found.failures for name, found in RESULTS.items() if found.failures}
    unexplained = [
        failure
        for name, lines in failures.items()
        for failure in lines
        if not explanations.explain(failure, known.get(name, {}))
    ]
    assert unexplained == []
    unused = [
        (name, part)
        for name, parts in known.items()
        for part in parts
        if not any(part in line for line in failures.get(name, ()))
    ]
    assert unused == []


def test_ci_has_cells_to_choose_from_and_each_has_passed_within_minutes() -> None:
    cheap = {name: RESULTS[name] for name, cell in CELLS.items() if cell.cheap}
    assert len(cheap) > 1
    assert {name: found.state for name, found in cheap.items() if found.state != State.PASSED} == {}
    assert {name: found.seconds for name, found in cheap.items() if found.seconds > 600} == {}
