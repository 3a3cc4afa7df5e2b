"""The commands and examples of the documents, which the tests run as they are written there."""

import re
import textwrap
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.common.processes import run
from tests.e2e.kubelet.parts import PROJECT

_PAGE: Final = "docs/deploy.md"
_SECONDS: Final = 200.0


def page(name: str) -> str:
    """Return the text of a page."""
    return (PROJECT / name).read_text(encoding="utf-8")


def command(start: str) -> str:
    """Return the first command of the page that begins with ``start``, without its comment. Raises AssertionError."""
    text = re.sub(r"\\\n +", "", page(_PAGE))
    lines = re.findall(r"(?m)^    ((?:helm|kubectl|kustomize|mkdir|rm|rmdir|until) .*)$", text)
    found = [re.sub(r"\s+#.*", "", line).strip() for line in lines if line.startswith(start)]
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
