"""The pytest fixtures, as pytest loads them for a user, and the first test of the README."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
TESTS = """
import os
import pytest
from kubelet_standin import KubeletVersion

def test_directory(kubelet_dir):
    assert os.listdir(kubelet_dir) == []
    assert len(kubelet_dir) < 50

@pytest.mark.parametrize("kubelet_version", KubeletVersion)
async def test_every_version(kubelet, dra_kubelet, kubelet_version):
    assert kubelet.version is dra_kubelet.version is kubelet_version

@pytest.mark.kubelet(max_message=7)
@pytest.mark.dra_kubelet(watch_health=False)
@pytest.mark.api_server(minor=34)
async def test_arguments(kubelet, kubelet_dir, pod_resources, dra_kubelet, api_server):
    assert kubelet.directory == kubelet_dir
    assert kubelet.version is KubeletVersion.V1_37
    assert kubelet._settings.max_message == 7
    assert not dra_kubelet._watch_health
    assert api_server.store.drop_fields == {"taints"}
    await kubelet.restart()
    assert os.path.exists(pod_resources.path)
"""


PLUGIN = f"""#!{sys.executable}
import asyncio, sys
from kubelet_standin import Kubelet
from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.tests.stub import PRE_STARTS, Plugins, register

async def main():
    plugin = await Plugins(sys.argv[2]).start("gpu0", "gpu1", resource="example.com/gpu", options=PRE_STARTS)
    answer = pb.ContainerAllocateResponse(envs={{"GPU": "0"}})
    plugin.response = pb.AllocateResponse(container_responses=[answer])
    await register(Kubelet(sys.argv[2]), plugin.name, resource=plugin.resource)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def run(directory: Path, tests: str, *arguments: str, path: str = "") -> str:
    """Run pytest on a file with the plugin; return its output."""
    (directory / "test_user.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "kubelet_standin.pytest_plugin", "-o", "addopts=", "-q"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PATH"] = f"{path}:{environment['PATH']}"
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
    output = run(tmp_path, TESTS, "-p", "pytest_asyncio.plugin", "--asyncio-mode=auto")
    assert "5 passed" in output, output


def test_first_test_of_the_readme_passes(tmp_path: Path) -> None:
    """It has 15 lines at most. The plugin that it starts is any program."""
    section = README.read_text(encoding="utf-8").partition("## A first test\n")[2].partition("\n## ")[0]
    first = textwrap.dedent(section[section.index("    import") : section.index("\nThe fixture")])
    assert len(first.strip().splitlines()) <= 15
    program = tmp_path / "my-plugin"
    program.write_text(PLUGIN)
    program.chmod(0o755)
    output = run(tmp_path, first, "-p", "pytest_asyncio.plugin", "--asyncio-mode=auto", path=str(tmp_path))
    assert "1 passed" in output, output


def test_plugin_imports_only_pytest() -> None:
    """It is loaded at each start of pytest, also in projects that do not use it."""
    program = (
        "import pytest, pytest_asyncio, sys; before = set(sys.modules); import kubelet_standin.pytest_plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == "['kubelet_standin', 'kubelet_standin.pytest_plugin']\n"
