"""Command lines of the plugins that a benchmark measures."""

import pytest

from tests.bench import contestants
from tests.bench.contestants import Contestant

VALUES = {"devices": "/d v", "kubelet": "/k", "port": "80"}


@pytest.mark.parametrize(
    ("command", "environment", "arguments"),
    [
        (
            "peer --dir {kubelet} --device '{name: x, path: {devices}/a*}'",
            {},
            ["peer", "--dir", "/k", "--device", "{name: x, path: /d v/a*}"],
        ),
        ("A='1 2' B={port} plugin C=3", {"A": "1 2", "B": "80"}, ["plugin", "C=3"]),
    ],
)
def test_words_in_braces_are_replaced_and_leading_assignments_are_variables(
    command: str, environment: dict[str, str], arguments: list[str]
) -> None:
    """Other braces stay."""
    assert Contestant("peer", command).command_line(VALUES) == (environment, arguments)


def test_a_plugin_on_the_command_line_has_a_name() -> None:
    assert contestants.parse("peer=A=1 peer --x=y") == Contestant("peer", "A=1 peer --x=y")
    for text in ("peer", "=peer", "peer="):
        with pytest.raises(ValueError, match="NAME=COMMAND"):
            contestants.parse(text)
