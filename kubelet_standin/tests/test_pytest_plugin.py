"""The pytest fixtures, as pytest loads them for a user, and the two tests of the README."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
import asyncio, itertools, os, sys
from grpc.aio import AioRpcError
from kubelet_standin import Kubelet
from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.tests.stub import PRE_STARTS, Plugins, register

async def serve(name):
    plugin = await Plugins(sys.argv[2]).start("0", "1", name=name, resource="example.com/gpu", options=PRE_STARTS)

    async def answer(context):
        (gpu,) = plugin.allocated[-1]
        device = pb.DeviceSpec(container_path="/dev/gpu", host_path="/dev/gpu" + gpu, permissions="rw")
        container = pb.ContainerAllocateResponse(envs={{"GPU": gpu}}, devices=[device])
        plugin.response = pb.AllocateResponse(container_responses=[container])

    plugin.hooks["Allocate"] = answer
    await register(Kubelet(sys.argv[2]), name, resource=plugin.resource)
    while os.path.exists(sys.argv[2] + "/" + name):
        await asyncio.sleep(0.02)

async def main():
    for number in itertools.count():
        try:
            await serve(f"{{number}}.sock")
        except AioRpcError:  # the kubelet is starting
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


CONFIGURATION = ("asyncio_mode = auto", "asyncio_default_fixture_loop_scope = function")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a directory with the user's plugin, and pytest's configuration that the README names."""
    readme = README.read_text(encoding="utf-8")
    assert [line for line in CONFIGURATION if f"`{line}`" not in readme] == []
    (tmp_path / "pytest.ini").write_text("\n".join(["[pytest]", *CONFIGURATION]))
    (tmp_path / "my-plugin").write_text(PLUGIN)
    (tmp_path / "my-plugin").chmod(0o755)
    return tmp_path


def section(title: str) -> str:
    """Return a section of the README."""
    return README.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


def run(directory: Path, *command: str) -> str:
    """Run a command in a directory whose programs it finds; return its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(  # noqa: S603 - our own commands
        command,
        cwd=directory,
        env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": f"{directory}:{environment['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    return f"{done.stdout}{done.stderr}exit code {done.returncode}"


def run_tests(directory: Path, tests: str) -> str:
    """Run pytest on a file; return its output."""
    (directory / "test_user.py").write_text(tests)
    plugins = ["-p", "kubelet_standin.pytest_plugin", "-p", "pytest_asyncio.plugin"]
    options = ["-q", "--strict-markers", "-p", "no:randomly", "-p", "no:cacheprovider"]
    return run(directory, sys.executable, "-m", "pytest", *plugins, *options)


def test_fixtures_run_with_pytest_asyncio(programs: Path) -> None:
    output = run_tests(programs, TESTS)
    assert "5 passed" in output, output


def test_first_test_of_the_readme_passes(programs: Path) -> None:
    """It has 15 lines at most, and three more for a restart. The plugin that it starts is any program."""
    text = section("A first test")
    first = text[text.index("    import") : text.index("\nThe most frequent")]
    more = text[text.index("            await kubelet.restart") : text.index("\nThe fixture")]
    assert len(first.strip().splitlines()) <= 15
    output = run_tests(programs, textwrap.dedent(first.replace("        finally:", f"{more}        finally:")))
    assert "1 passed" in output, output


def test_shell_example_of_the_readme_passes(programs: Path, kubelet_dir: str) -> None:
    text = section("The command, for plugins in any language")
    example = textwrap.dedent(text[text.index("    mkfifo commands") :]).replace("/tmp", kubelet_dir)
    (programs / "kubelet-standin").write_text(f'#!/bin/sh\nexec {sys.executable} -m kubelet_standin "$@"\n')
    (programs / "kubelet-standin").chmod(0o755)
    output = run(programs, "bash", "-c", example)
    assert output.endswith("exit code 0"), output


def test_plugin_imports_only_pytest() -> None:
    """It is loaded at each start of pytest, also in projects that do not use it."""
    program = (
        "import pytest, pytest_asyncio, sys; before = set(sys.modules); import kubelet_standin.pytest_plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == "['kubelet_standin', 'kubelet_standin.pytest_plugin']\n"
