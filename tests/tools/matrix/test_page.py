"""docs/compatibility.md is what the results of the matrix render to, and results.json fits the cells."""

from tests.matrix import page, results
from tests.matrix.cells import State, cells, columns
from tests.matrix.output import fits

CELLS = cells()
RESULTS = results.published()


def test_the_committed_page_is_rendered_from_the_committed_results() -> None:
    text = page.render(columns(), RESULTS)
    assert page.PAGE.read_text(encoding="utf-8") == text, "run `make matrix MATRIX=render`"
    assert "{{" not in text


def test_each_result_is_of_its_cell_s_command_and_versions_of_today() -> None:
    for name, found in RESULTS.items():
        assert found.command == CELLS[name].command.split(), name
        if found.state == State.PASSED:
            assert all(fits(found.versions[each], expected) for each, expected in CELLS[name].expect.items()), name


def test_each_failed_cell_has_a_note() -> None:
    assert [name for name, found in RESULTS.items() if found.state == State.FAILED and not CELLS[name].note] == []


def test_ci_has_cells_to_choose_from_and_each_has_passed_within_minutes() -> None:
    cheap = [RESULTS[name] for name, cell in CELLS.items() if cell.cheap]
    assert len(cheap) > 1
    assert all(found.state == State.PASSED and found.seconds < 600 for found in cheap)
