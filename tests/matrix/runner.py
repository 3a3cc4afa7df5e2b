"""Runs the command of a cell, keeps its log and its result in the cache, and decides its state."""

import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.e2e.common import cache
from tests.e2e.common.report import say
from tests.matrix import results
from tests.matrix.cells import Cell, State
from tests.matrix.output import Output, fits, without_places

ROOT: Final = Path(__file__).resolve().parents[2]
_GRACE: Final = 60
"""Seconds between SIGTERM and SIGKILL."""
_COLUMNS: Final = "1000"
"""The width of the command's terminal: pytest cuts reasons and causes to it."""
_TIMED_OUT: Final = (124, -signal.SIGKILL)
"""Exit codes of timeout(1)."""


def sources() -> str:
    """Return a digest of the package, which is what the matrix is about."""
    return cache.key([ROOT / "aosp_plugin"])


def is_current(result: results.Result | None) -> bool:
    """Return whether a run may take this result over: the command ran without a failure, with today's package."""
    return result is not None and result.state == State.PASSED and result.sources == sources()


def belongs(result: results.Result) -> bool:
    """Return whether a result is about this checkout's package, as it is or as it was at a commit in its history."""
    if result.sources == sources():
        return True
    # The name of a commit with uncommitted changes ends with "+", and is none that git knows.
    command = ["git", "merge-base", "--is-ancestor", result.plugin, "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0  # noqa: S603 - only git


def run(name: str, cell: Cell) -> results.Result:
    """Run the command of a cell, save its result in the cache, and return it."""
    with cache.exclusive(f"matrix-{name.replace('/', '-')}"):
        before, plugin, started = sources(), _plugin(), time.time()
        output = Output()
        code = _execute(cell, results.directory(name) / "log", output)
        if sources() != before:
            output.failures.append("the command : aosp_plugin changed while it ran")
        result = results.Result(
            state=judge(cell, output, code),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            finished=round(time.time(), 1),
            command=cell.command.split(),
            plugin=plugin,
            sources=before,
            seconds=round(time.time() - started),
            passed=output.passed,
            failures=output.failures,
            skipped=output.skipped,
            versions=dict(sorted(output.versions.items())),
        )
        results.save(name, result)
        return result


def judge(cell: Cell, output: Output, code: int) -> State:
    """Return the state of a cell whose command has ended, and add what only the whole output shows to the failures."""
    if code and not output.failures:
        output.failures.append(f"the command : exit code {code} without a failed test")
    if not output.failures and not output.passed:
        if output.skipped:
            return State.NOT_RUN
        output.failures.append("the command : no test was reported")
    for name, beginning in cell.expect.items():
        version = output.versions.get(name, "no version")
        if not fits(version, beginning):
            output.failures.append(f"the command : ran {name} {version} instead of {beginning}")
    return State.FAILED if output.failures else State.PASSED


def _execute(cell: Cell, log: Path, output: Output) -> int:
    """Run the command, write its lines to the log, print those of the report, and return the exit code."""
    # timeout has a process group of its own, so that it ends what the command has started, too.
    limit = ["timeout", f"--kill-after={_GRACE}", f"{cell.hours * 3600}"]
    process = subprocess.Popen(  # noqa: S603 - the commands are those of the cells
        [*limit, sys.executable, "-m", *cell.command.split()],
        cwd=ROOT,
        # Also where a skipped test fails otherwise: a cell may lack what some tests require, such as SELinux.
        env=os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": _COLUMNS, "E2E_STRICT": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    try:
        with log.open("w", encoding="utf-8") as file, process.stdout:
            for line in process.stdout:
                file.write(line)
                file.flush()
                if output.read(line.rstrip("\n")):
                    say(line.rstrip("\n"))
    finally:
        process.terminate()
    code = process.wait()
    if code in _TIMED_OUT:
        output.failures.append(f"the command : ended at its time limit of {cell.hours:g} hours")
    return code


def _plugin() -> str:
    """Return the last commit that changed the package, with ``+`` if it has uncommitted changes."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments, "--", "aosp_plugin"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - only git
        return done.stdout.strip()

    return git("log", "-1", "--format=%h", "--abbrev=7") + ("+" if git("status", "--porcelain") else "")


def last_lines(name: str, number: int) -> str:
    """Return the end of a cell's log."""
    text = (results.directory(name) / "log").read_text(encoding="utf-8", errors="replace")
    return without_places("\n".join(text.splitlines()[-number:]))
