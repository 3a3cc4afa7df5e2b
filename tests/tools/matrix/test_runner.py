"""The runner of the matrix, with small programs as commands."""

import textwrap
from pathlib import Path

import pytest

from tests.matrix import results, runner
from tests.matrix.cells import Cell, State
from tests.matrix.results import Result

PASSES = """
    print("tests/test_pods.py::test_start[process] PASSED [  1%]")
    print("# version runc: 1.1.5")
    print("tests/test_pods.py::test_cdi[process] SKIPPED (no CDI) [100%]")
    import os; assert not os.environ["E2E_STRICT"]
"""
FAILS = """
    print("tests/test_pods.py::test_start[process] FAILED [ 50%]")
    print("tests/test_pods.py::test_end[process] ERROR [100%]")
    print("FAILED tests/test_pods.py::test_start[process] - assert 1 == 2")
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(results, "FILE", tmp_path / "results.json")
    results.FILE.write_text("{}")


def cell(tmp_path: Path, program: str, **fields: object) -> Cell:
    """Return a cell whose command is a program."""
    (tmp_path / "matrix_command.py").write_text(textwrap.dedent(program))
    values: dict[str, object] = {"name": "a", "title": "A", "command": "matrix_command", **fields}
    return Cell(**values)  # type: ignore[arg-type]


def run(tmp_path: Path, program: str, **fields: object) -> Result:
    """Return the result of a program."""
    return runner.run("runtimes/a", cell(tmp_path, program, **fields))


def test_a_command_that_reports_tests_passes_and_its_counts_and_versions_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may skip tests, also in CI."""
    monkeypatch.setenv("E2E_STRICT", "yes")
    found = run(tmp_path, PASSES)
    assert (found.state, found.passed, found.skipped) == (State.PASSED, 1, {"no CDI": 1})
    assert found.versions == {"runc": "1.1.5"}
    assert results.cached("runtimes/a", cell(tmp_path, PASSES)) == found
    assert "# version runc: 1.1.5\n" in (results.directory("runtimes/a") / "log").read_text()


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        (FAILS, "tests/test_pods.py::test_start[process] : assert 1 == 2"),
        (FAILS, "tests/test_pods.py::test_end[process]"),
        ("print('a.py::test_a PASSED'); raise SystemExit(3)", "the command : exit code 3 without a failed test"),
        ("print('hello')", "the command : no test was reported"),
        ("print('a.py::test_a PASSED')", "the command : ran runc no version instead of 1.1"),
        (
            "print('a.py::test_a PASSED'); print('# version runc: 1.1.5'); print('# version runc: 1.3.6')",
            "the command : ran runc 1.1.5 and 1.3.6 instead of 1.1",
        ),
    ],
)
def test_a_command_fails_by_a_test_its_exit_code_silence_or_another_version(
    tmp_path: Path, program: str, failure: str
) -> None:
    found = run(tmp_path, program, expect={"runc": "1.1"} if "runc" in failure else {})
    assert found.state == State.FAILED
    assert failure in found.failures


def test_a_command_that_skips_all_tests_is_not_run(tmp_path: Path) -> None:
    found = run(tmp_path, "print('skipped: it requires root')", expect={"runc": "1.1"})
    assert (found.state, found.skipped, found.failures) == (State.NOT_RUN, {"it requires root": 1}, [])


def test_a_command_is_ended_at_its_time_limit_with_what_it_has_started(tmp_path: Path) -> None:
    program = """
        import subprocess
        print("a.py::test_a PASSED")
        subprocess.run(["sleep", "1000"])
    """
    found = run(tmp_path, program, hours=2 / 3600)
    assert found.state == State.FAILED
    assert any("time limit" in failure for failure in found.failures)


def test_only_a_result_without_failures_of_the_same_package_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not runner.is_current(None)
    assert not runner.is_current(run(tmp_path, "print('a.py::test_a FAILED')"))
    found = run(tmp_path, PASSES)
    assert runner.is_current(found)
    monkeypatch.setattr(runner, "sources", lambda: "changed")
    assert not runner.is_current(found)


def test_a_run_during_which_the_package_changes_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(["before", "after"])
    monkeypatch.setattr(runner, "sources", lambda: next(digests))
    found = run(tmp_path, PASSES)
    assert found.state == State.FAILED
    assert found.failures == ["the command : aosp_plugin changed while it ran"]
