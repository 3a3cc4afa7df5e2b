"""The tests with a real kubelet run in a sandbox only: on the host they would mount over its directories."""

import subprocess
import sys


def test_pytest_alone_runs_no_test_with_a_real_kubelet_and_names_the_command() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/e2e/kubelet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - only pytest
    assert (done.returncode, "no tests ran" in done.stdout) == (4, True)
    assert "ERROR: these tests need a sandbox: run make test-kubelet" in done.stderr
