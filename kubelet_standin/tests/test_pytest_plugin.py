"""The pytest fixtures, as pytest loads them for a user."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os
import pytest
from kubelet_standin import KubeletVersion

def test_directory(kubelet_dir):
    assert os.listdir(kubelet_dir) == []
    assert len(kubelet_dir) < 50

@pytest.mark.parametrize("kubelet_version", KubeletVersion)
async def test_every_version(kubelet, kubelet_version):
    assert kubelet.version is kubelet_version

@pytest.mark.kubelet(max_message=7)
async def test_arguments(kubelet, kubelet_dir):
    assert kubelet.directory == kubelet_dir
    assert kubelet.version is KubeletVersion.V1_37
    assert kubelet._settings.max_message == 7
"""


def run(directory: Path, *arguments: str) -> str:
    """Run pytest on ``TESTS`` with the plugin; return its output."""
    (directory / "test_user.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "kubelet_standin.pytest_plugin", "-o", "addopts=", "-q"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(  # noqa: S603 - our own command
        [*command, "--strict-markers", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    return done.stdout + done.stderr


def test_fixtures_run_with_pytest_asyncio(tmp_path: Path) -> None:
    output = run(tmp_path, "-p", "pytest_asyncio.plugin", "--asyncio-mode=auto")
    assert "5 passed" in output, output


def test_kubelet_fixture_without_pytest_asyncio_says_so(tmp_path: Path) -> None:
    """The other fixtures do not require it."""
    (tmp_path / "pytest_asyncio.py").write_text("raise ImportError")
    output = run(tmp_path, "-k", "directory or arguments", "-W", "ignore")
    assert "1 passed" in output, output
    assert "the kubelet fixture requires pytest-asyncio: pip install pytest-asyncio" in output


def test_plugin_imports_only_pytest() -> None:
    """It is loaded at each start of pytest, also in projects that do not use it."""
    program = (
        "import pytest, pytest_asyncio, sys; before = set(sys.modules); import kubelet_standin.pytest_plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == "['kubelet_standin', 'kubelet_standin.pytest_plugin']\n"
