"""``aosp-plugin demo``."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "aosp_plugin", "demo"]


def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run the demo; return its exit code and output."""
    done = subprocess.run(  # noqa: S603 - our own command
        [*DEMO, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
        timeout=50,
    )
    return done.returncode, done.stdout, done.stderr


def unprivileged(command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` as the user 65534, without root.

    The process keeps CAP_DAC_READ_SEARCH, because only the owner may be able to read the interpreter and the checkout.
    It measures no coverage: it may not be able to write the data.
    """
    environment = [f"--unset={name}" for name in os.environ if name.startswith("COVERAGE_")]
    user = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    capabilities = [f"--{kind}=-all,+dac_read_search" for kind in ("bounding-set", "inh-caps", "ambient-caps")]
    return ["env", *environment, "setpriv", *user, *capabilities, *command]


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


def test_demo_shows_every_step(kubelet_dir: str) -> None:
    """They are registration, two pods, a phone that loses a device and gets it back, and a restart of the kubelet."""
    code, out, err = run("--phones", "50", environment={"TMPDIR": kubelet_dir})
    assert (code, err) == (0, "")
    assert os.listdir(kubelet_dir) == []
    for text in (
        "create 50 stand-in phones",
        "Register: version=v1beta1 resource_name=aosp.io/phone",
        "capacity 50, allocatable 50",
        "mount   /dev/binder             ro from",
        "env     BINDER_VISIBLE_DEVICES  phone0/binder,phone0/hwbinder,phone0/vndbinder",
        "env     BINDER_VISIBLE_DEVICES  phone1/binder,phone1/hwbinder,phone1/vndbinder",
        "capacity 50, allocatable 49",
        "hwbinder of phone49 is back",
        "the kubelet restarts",
        "both pods keep their phones",
        "done in",
    ):
        assert text in out


@pytest.mark.skipif(os.getuid() != 0, reason="the tests run without root, and so do the other tests of the demo")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="requires setpriv of util-linux")
def test_demo_requires_no_root() -> None:
    done = subprocess.run(  # noqa: S603 - our own command
        unprivileged([*DEMO, "--phones", "20"]),
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "done in" in done.stdout


def test_demo_requires_phones_for_its_pods() -> None:
    """Each of two pods has a phone; a third one loses a device."""
    code, _, err = run("--phones", "2")
    assert code == 2
    assert "3<=x<=10000" in err
    assert run("--phones", "3")[0] == 0


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
    code, out, _ = run("--phones", "10", environment={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    assert code == 1
    assert f"failed: {failure}" in out
    assert log in out
