"""``aosp-plugin demo``, which ``make demo`` runs: it checks each of its steps itself."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest


def test_only_the_demo_of_the_plugin_needs_another_distribution() -> None:
    """No two distributions need each other."""
    root = Path(__file__).parents[2]
    needs: dict[tuple[str, str], set[str]] = {}
    for directory in (".", "kubelet_standin", "kubectl_phones"):
        project = tomllib.loads((root / directory / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        groups = {"": project.get("dependencies", []), **project.get("optional-dependencies", {})}
        needs |= {(project["name"], group): set(requirements) for group, requirements in groups.items()}
    own = {name for name, _ in needs}
    assert {key: found for key, requirements in needs.items() if (found := requirements & own)} == {
        ("aosp-device-plugin", "demo"): {"kubelet-standin"}
    }


@pytest.mark.parametrize(
    ("breakage", "failure", "log"),
    [
        (
            "sys.exit('broken for the test')",
            "the plugin registers, and the kubelet lists its phones: the plugin exited with 1",
            "broken for the test",
        ),
        ("import atexit, os; atexit.register(os._exit, 3)", "the plugin exited with 3", "stopped"),
    ],
)
def test_demo_fails_with_the_log_of_a_plugin_that_fails(tmp_path: Path, breakage: str, failure: str, log: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nif 'serve' in sys.argv: {breakage}\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "aosp_plugin", "demo", "--phones", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=50)  # noqa: S603
    assert done.returncode == 1
    assert f"failed: {failure}" in done.stdout
    assert log in done.stdout
