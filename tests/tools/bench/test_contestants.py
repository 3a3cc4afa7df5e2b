"""Command lines of the plugins that a benchmark measures."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.bench import contestants
from tests.bench.contestants import Contestant

if TYPE_CHECKING:
    from pathlib import Path

VALUES = {"devices": "/d v", "kubelet": "/k", "port": "80"}


def test_words_in_braces_are_replaced_and_other_braces_stay() -> None:
    peer = Contestant("peer", "peer --dir {kubelet} --device '{name: x, path: {devices}/a*}'")
    assert peer.command_line(VALUES) == ({}, ["peer", "--dir", "/k", "--device", "{name: x, path: /d v/a*}"])


def test_leading_assignments_are_environment_variables() -> None:
    plugin = Contestant("plugin", "A='1 2' B={port} plugin C=3")
    assert plugin.command_line(VALUES) == ({"A": "1 2", "B": "80"}, ["plugin", "C=3"])


def test_a_plugin_on_the_command_line_has_a_name() -> None:
    assert contestants.parse("peer=A=1 peer --x=y") == Contestant("peer", "A=1 peer --x=y")
    for text in ("peer", "=peer", "peer="):
        with pytest.raises(ValueError, match="NAME=COMMAND"):
            contestants.parse(text)


def test_the_plugin_of_another_checkout_is_not_that_of_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "aosp_plugin").mkdir()
    (tmp_path / "aosp_plugin/__init__.py").touch()
    environment, arguments = contestants.before(str(tmp_path)).command_line({})
    assert (environment["PYTHONPATH"], environment["PYTHONSAFEPATH"]) == (os.path.realpath(tmp_path), "1")
    assert arguments[:3] == [sys.executable, "-m", "aosp_plugin"]
