"""``aosp-plugin nodes``: real processes and files, as an operator uses them."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import run_command


class Done(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str


def run(*arguments: str) -> Done:
    """Run ``aosp-plugin nodes`` to its end, in this process."""
    return Done(*run_command("nodes", *arguments))


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    directory = tmp_path / "dev"
    directory.mkdir()
    return directory


def test_the_commands_create_list_and_delete(dev: Path) -> None:
    where = ("--device-dir", str(dev))
    created = run("create", "--count", "2", "--start", "9", "--stand-ins", *where)
    assert (created.code, created.err) == (0, "")
    assert created.out.startswith(f"{dev}: 2 devices created, 0 already present (aosp_binder9 to aosp_binder10, ")
    assert {path.stat().st_mode & 0o777 for path in dev.iterdir()} == {0o666}
    kind, names = "stand-in" if os.geteuid() == 0 else "file", ["aosp_binder9", "aosp_binder10"]
    listed = run("list", *where)
    assert listed == (0, "".join(f"{name}\t{kind}\t{dev}/{name}\n" for name in names), "")
    as_json = run("list", "--json", *where)
    assert json.loads(as_json.out) == [
        {"name": name, "kind": kind, "path": f"{dev}/{name}", "target": ""} for name in names
    ]
    assert run("delete", *where) == (0, f"{dev}: 2 devices deleted\n", "")
    assert json.loads(run("list", "--json", *where).out) == []


def test_a_failure_is_one_line_and_exit_code_1() -> None:
    assert run("list", "--device-dir", "/nope") == (
        1,
        "",
        "aosp-plugin: cannot read the device directory /nope: No such file or directory\n",
    )
