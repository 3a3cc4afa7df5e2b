"""``python -m tests.matrix``, with small programs as the commands of its cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix import columns, page, results
from tests.matrix.__main__ import main
from tests.matrix.cell import Cell, State

ADDS_A_LINE = """
import sys
with open(sys.argv[1], "a") as file:
    file.write(sys.argv[2])
lines = {"p": "ok 1 - item (0.1 s)", "f": "not ok 1 - item : broken", "s": "ok 1 - item # skip: no root"}
print(lines[sys.argv[2]])
"""


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with a letter for each command that has run: of the cells passes, fails and without."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "matrix_command.py").write_text(ADDS_A_LINE)
    file = tmp_path / "ran"
    file.touch()
    cells = (
        Cell(name="passes", title="A", command=("matrix_command", str(file), "p"), cheap=True),
        Cell(name="fails", title="B", command=("matrix_command", str(file), "f")),
        Cell(name="without", title="C", not_run="nothing can try it"),
    )
    monkeypatch.setattr(columns, "load", lambda: {"kernels": cells, "runtimes": cells[:1]})
    monkeypatch.setattr(results, "FILE", tmp_path / "results.json")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    results.FILE.write_text("{}")
    return file


def test_a_second_run_repeats_only_what_has_not_passed(ran: Path) -> None:
    assert main([]) == 1
    assert ran.read_text() == "pfp"
    assert main([]) == 1
    assert ran.read_text() == "pfpf"
    assert main(["--again", "--column", "runtimes"]) == 0
    assert ran.read_text() == "pfpfp"


def test_a_run_publishes_the_results_and_the_page(ran: Path) -> None:
    main(["--cell", "kernels/fails", "--cell", "kernels/passes"])
    assert {name: found.state for name, found in results.published().items()} == {
        "kernels/fails": State.FAILED,
        "kernels/passes": State.PASSED,
    }
    assert "- failed: `item : broken`" in page.PAGE.read_text()
    assert ran.read_text() == "pf"


def test_one_runs_a_cheap_cell_and_publishes_nothing(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["one", "--date", "2026-11-22"]) == 0
    assert ran.read_text() == "p"
    assert "1 passed, 0 failed, 0 skipped" in capsys.readouterr().out
    assert results.FILE.read_text() == "{}"
    assert not page.PAGE.exists()


def test_one_fails_if_the_cell_skips_all_its_items(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(name="skips", title="A", command=("matrix_command", str(ran), "s"), cheap=True)
    monkeypatch.setattr(columns, "load", lambda: {"kernels": (cell,)})
    assert main(["one", "--date", "2026-11-22"]) == 1
