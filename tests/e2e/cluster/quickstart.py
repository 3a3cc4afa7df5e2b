"""docs/quickstart.md as commands: in which section they are, where they run, and what they print.

A command that contains ``sudo`` or ``/proc`` runs on the node, all others where kubectl and Helm are. The comment
behind a command is a part of its output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import yaml

from tests.e2e.cluster import documented

PAGE: Final = "docs/quickstart.md"


@dataclass(frozen=True)
class Command:
    """A command of the page."""

    section: str
    """The heading above it."""
    line: str
    """The command as it is written, without the comment."""
    output: str
    """What it prints, among other things."""

    @property
    def on_node(self) -> bool:
        """Whether it runs on the node."""
        return "sudo " in self.line or "/proc/" in self.line


def commands() -> list[Command]:
    """Return the commands of the page, each of which is a line of an indented block."""
    found = []
    section = ""
    text = re.sub(r"\\\n +", "", documented.page(PAGE))
    text = re.sub(r"(?ms)^```.*?^```$", "", text)
    for line in text.splitlines():
        if heading := re.fullmatch(r"#+ (.+)", line):
            section = heading[1]
        elif line.startswith("    "):
            command, _, output = re.sub(r"\s+#\s+", "\0", line.strip(), count=1).partition("\0")
            found.append(Command(section, command, output))
    return found


def manifest() -> str:
    """Return the page's phone.yaml."""
    (text,) = re.findall(r"(?ms)^```yaml\n(.*?)^```$", documented.page(PAGE))
    yaml.safe_load(text)
    return str(text)
