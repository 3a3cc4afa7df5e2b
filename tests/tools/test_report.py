"""The exit code of tests on real components."""

import pytest

from tests.e2e.common.report import FAILED, PASSED, Report


@pytest.mark.parametrize(("strict", "code"), [("yes", FAILED), ("", PASSED)])
def test_a_skipped_item_fails_a_strict_run_only(monkeypatch: pytest.MonkeyPatch, strict: str, code: int) -> None:
    monkeypatch.setenv("E2E_STRICT", strict)
    report = Report()
    report.ok("one", 0.1)
    report.skip("two", "this machine has no Go")
    assert report.end() == code
