"""The exit codes of ``kubectl phones``; tests/integration runs it as a process."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from aosp_plugin.cli.fleet import command, run

if TYPE_CHECKING:
    import pytest


def test_a_bug_is_not_taken_for_a_problem_of_phones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError("an odd object")

    monkeypatch.setattr(run, "run", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main(["--check"]) == command.FAILED
    assert "RuntimeError: an odd object" in capsys.readouterr().err
