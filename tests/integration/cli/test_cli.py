"""The command line: help, version, errors and config."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from aosp_plugin import __version__
from aosp_plugin.config import keys
from tests.support import run_command


def test_version() -> None:
    assert run_command("--version") == (0, f"aosp-plugin, version {__version__}\n", "")


def test_unknown_command_is_one_line_and_exit_code_2() -> None:
    assert run_command("dance") == (2, "", "aosp-plugin: No such command 'dance'.\n")


def test_config_prints_each_value_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nverify: binder\nisolation: strict\n")
    code, out, _ = run_command(
        "config", "--config", str(file), "--isolation", "shared", environment={"AOSP_PLUGIN_MISSING_DEVICE_TTL": "5"}
    )
    assert code == 0
    assert yaml.safe_load(out).keys() == {"version", *keys.KEYS}
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert lines["verify"] == f'"binder"  # file {file}: verify'
    assert lines["isolation"] == '"shared"  # flag --isolation'
    assert lines["missing_device_ttl"] == "5.0  # variable AOSP_PLUGIN_MISSING_DEVICE_TTL"
    assert lines["device_dir"] == '"/dev"  # default'


@pytest.mark.parametrize(
    ("modules", "unused"),
    [
        ("framework", "grpc google.protobuf watchdog"),
        ("cli.main, aosp_plugin.cli.status", "grpc google.protobuf watchdog prometheus_client"),
        (
            "cli, aosp_plugin.daemon.serve",
            "aiohttp yarl multidict zipfile importlib.resources aosp_plugin.cli.status",
        ),
    ],
    ids=["framework", "status", "serve"],
)
def test_commands_load_only_the_modules_that_they_use(modules: str, unused: str) -> None:
    """They run in the container of the daemon, within its memory limit."""
    program = f"import sys, aosp_plugin.{modules}; print(sys.modules.keys() & set({unused!r}.split()))"
    command = [sys.executable, "-c", program]
    # What measures coverage loads json.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
    assert result.stdout == "set()\n"
