"""The commands and examples of the documents, which the tests run as they are written there."""

import re
import textwrap
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.e2e.common.processes import run
from tests.e2e.deploy.parts import PROJECT

_PAGE: Final = "docs/deploy.md"
_SECONDS: Final = 200.0


def page(name: str) -> str:
    """Return the text of a page."""
    return (PROJECT / name).read_text(encoding="utf-8")


class Command(NamedTuple):
    """A command of the page."""

    section: str
    """The heading above it."""
    line: str
    """The command as it is written, without the comment."""
    output: str = ""
    """What it prints, among other things."""


def commands(name: str) -> list[Command]:
    """Return the commands of a page, each of which is a line of an indented block."""
    found = []
    section = ""
    text = re.sub(r"\\\n +", "", page(name))
    text = re.sub(r"(?ms)^```.*?^```$", "", text)
    for line in text.splitlines():
        if heading := re.fullmatch(r"#+ (.+)", line):
            section = heading[1]
        elif line.startswith("    "):
            command, _, output = re.sub(r"\s+#\s+", "\0", line.strip(), count=1).partition("\0")
            found.append(Command(section, command, output))
    return found


def command(start: str) -> str:
    """Return the first command of the page that begins with ``start``. Raises AssertionError."""
    found = [command.line for command in commands(_PAGE) if command.line.startswith(start)]
    assert found, f"{_PAGE} has no command {start!r}"
    return found[0]


def example(text: str) -> Any:
    """Return the YAML of the example that contains ``text``, an indented block of lines after another."""
    for block in re.findall(r"(?m)(?:^ {4}.*\n)+", page(_PAGE)):
        if text in block:
            return yaml.safe_load(textwrap.dedent(block))
    raise AssertionError(f"{_PAGE} has no example with {text!r}")


def shell(line: str, *, cwd: Path = PROJECT, seconds: float = _SECONDS, **placeholders: str) -> str:
    """Run a command of the page, and return its output; ``placeholders`` are replaced by values.

    Raises AssertionError with the output if it fails.
    """
    for name, value in ({"REGISTRY": "localhost"} | placeholders).items():
        line = re.sub(rf"\b{name}\b", value, line)
    return run("sh", "-ec", line, cwd=cwd, seconds=seconds)
