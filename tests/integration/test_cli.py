"""The command line: help, version, errors, config, demo and nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from aosp_plugin import __version__, config
from aosp_plugin.cli import main
from tests.support import as_nobody

COMMAND = [sys.executable, "-m", "aosp_plugin"]


def run(*arguments: str, environment: dict[str, str] | None = None, uid: int | None = None) -> tuple[int, str, str]:
    """Run the command, and return its exit code and what it printed."""
    done = subprocess.run(  # noqa: S603 - our own command
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
        user=uid,
        timeout=50,
    )
    return done.returncode, done.stdout, done.stderr


def test_version() -> None:
    assert run("--version") == (0, f"aosp-plugin, version {__version__}\n", "")


def test_no_command_prints_the_help() -> None:
    code, out, err = run()
    assert (code, out, err) == run("--help")
    assert (code, err) == (0, "")
    assert out.startswith("Usage: aosp-plugin [OPTIONS] [COMMAND] [ARGS]...\n\n")
    commands = out.partition("Commands:\n")[2].splitlines()
    assert {line.split()[0] for line in commands} >= {"config", "demo", "nodes", "serve", "status"}
    assert all(line.endswith(".") and not line.endswith("...") for line in commands)


def test_help_of_serve_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["serve", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, key in config.KEYS.items():
        assert (config.flag(name) in shown) is key.flag


def test_config_prints_each_value_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nverify: binder\nisolation: strict\n")
    code, out, _ = run(
        "config", "--config", str(file), "--isolation", "shared", environment={"AOSP_PLUGIN_MISSING_DEVICE_TTL": "5"}
    )
    assert code == 0
    assert yaml.safe_load(out).keys() == {"version", *config.KEYS}
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert lines["verify"] == f'"binder"  # file {file}: verify'
    assert lines["isolation"] == '"shared"  # flag --isolation'
    assert lines["missing_device_ttl"] == "5.0  # variable AOSP_PLUGIN_MISSING_DEVICE_TTL"
    assert lines["device_dir"] == '"/dev"  # default'


def test_unknown_command_is_one_line_and_exit_code_2() -> None:
    assert run("dance") == (2, "", "aosp-plugin: No such command 'dance'.\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "/dev/x"), "/dev/x: No such file or directory"),
        (OSError("no\ndescriptors"), "no descriptors"),
    ],
)
def test_error_of_the_operating_system_is_one_line(
    error: OSError, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(config, "load", fail)
    assert main.main(["config"]) == 1
    assert capsys.readouterr().err == f"aosp-plugin: {line}\n"


def test_device_directory_that_is_a_link_loop_is_one_line(tmp_path: Path, kubelet_dir: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    code, _, err = run("serve", "--device-dir", f"{tmp_path}/loop", "--kubelet-dir", kubelet_dir, "--listen", "")
    assert code == 1
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("aosp-plugin: ")


def test_demo_shows_every_step(kubelet_dir: str) -> None:
    """The steps are registration, two pods, a device that vanishes and returns, and a restart of the kubelet."""
    code, out, err = run("demo", "--nodes", "50", environment={"TMPDIR": kubelet_dir})
    assert (code, err) == (0, "")
    assert os.listdir(kubelet_dir) == []
    for shown in (
        "50 stand-in nodes",
        "Register: version=v1beta1 resource_name=aosp.io/binder",
        "capacity 50, allocatable 50",
        "env     BINDER_VISIBLE_DEVICES  aosp_binder0,aosp_binder1,aosp_binder2",
        "env     BINDER_VISIBLE_DEVICES  aosp_binder3,aosp_binder4,aosp_binder5",
        "mount   /dev/binderfs",
        "capacity 50, allocatable 49",
        "aosp_binder49 comes back",
        "the kubelet restarts",
        "both pods keep what they have",
        "done in",
    ):
        assert shown in out


@pytest.mark.skipif(os.getuid() != 0, reason="the tests run without root, and so do the other tests of the demo")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="requires setpriv of util-linux")
def test_demo_requires_no_root() -> None:
    done = subprocess.run(  # noqa: S603 - our own command
        as_nobody([*COMMAND, "demo", "--nodes", "20"]),
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "done in" in done.stdout


def test_demo_requires_devices_for_its_pods() -> None:
    """The pods use seven devices; one more vanishes and returns."""
    code, _, err = run("demo", "--nodes", "7")
    assert code == 2
    assert "8<=x<=100000" in err
    assert run("demo", "--nodes", "8")[0] == 0


def test_demo_keeps_its_directory_on_request(kubelet_dir: str) -> None:
    code, out, _ = run("demo", "--nodes", "20", "--keep", environment={"TMPDIR": kubelet_dir})
    assert code == 0, out
    kept = Path(out.split("kept: ")[1].splitlines()[0])
    assert [kept.name] == os.listdir(kubelet_dir)
    assert "registered" in (kept / "plugin.log").read_text()
    assert (kept / "kubelet.log").exists()
    assert (kept / "kubelet" / "kubelet_internal_checkpoint").exists()
    assert len(list((kept / "dev").iterdir())) == 20


@pytest.mark.parametrize(
    ("breakage", "missing", "log"),
    [
        (
            "sys.exit('broken for the test')",
            "the plugin registers, and the kubelet lists its devices: it ended with 1",
            "broken for the test",
        ),
        ("import atexit, os; atexit.register(os._exit, 3)", "the plugin ends with 0, but it was 3", "stopped"),
    ],
)
def test_demo_fails_with_the_log_of_a_plugin_that_fails(tmp_path: Path, breakage: str, missing: str, log: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nif 'serve' in sys.argv: {breakage}\n")
    code, out, _ = run("demo", "--nodes", "10", environment={"PYTHONPATH": str(tmp_path)})
    assert code == 1
    assert f"this did not happen: {missing}" in out
    assert log in out
