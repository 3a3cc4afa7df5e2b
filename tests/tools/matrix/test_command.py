"""``python -m tests.matrix``, with small programs as the commands of its cells."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix import columns, page, results
from tests.matrix.__main__ import cheap_cell, main
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


def test_an_unknown_cell_is_refused(ran: Path) -> None:
    with pytest.raises(SystemExit, match=r"unknown cells: kernels/2\.0"):
        main(["--cell", "kernels/2.0"])
    assert ran.read_text() == ""


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


RUNS_A_CELL = """
import pathlib, signal, sys
from tests.matrix import columns, page, results
from tests.matrix.__main__ import main
from tests.matrix.cell import Cell
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
page.PAGE, results.FILE = (pathlib.Path(sys.argv[1], name) for name in ("page.md", "results.json"))
columns.load = lambda: {"kernels": (Cell(name="hangs", title="A", command=("matrix_command",)),)}
main(["--cell", "kernels/hangs"])
"""
HANGS = """
import os, signal
print(f"# process {os.getpid()}", flush=True)
signal.alarm(60)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGABRT, signal.SIGINT])
def test_a_signal_ends_the_command_of_the_running_cell_too(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "matrix_command.py").write_text(HANGS)
    root = Path(__file__).resolve().parents[3]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": f"{root}:{tmp_path}"}
    with subprocess.Popen(  # noqa: S603 - the program above
        [sys.executable, "-c", RUNS_A_CELL, tmp_path], cwd=root, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        command = next(int(line.split()[-1]) for line in process.stdout if line.startswith("# process"))
        process.send_signal(number)
        assert process.wait(30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(command, 0)


def test_cheap_cells_take_turns_by_date() -> None:
    cells = {name: Cell(name=name, title=name, command=("x",), cheap=name != "b") for name in "abcd"}
    days = [datetime.date(2026, 12, 30) + datetime.timedelta(days=day) for day in range(6)]
    turns = [cheap_cell(cells, day) for day in days]
    assert sorted(map(str, turns[:3])) == ["a", "c", "d"]
    assert turns[3:] == turns[:3]
    assert cheap_cell({}, days[0]) is None
