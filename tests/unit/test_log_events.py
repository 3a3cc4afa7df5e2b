"""The log events in docs/monitoring.md are those of the code, with their level."""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from tests.reports import kinds

ROOT = Path(__file__).resolve().parents[2]
CALLS = {f"LOG.{level}": level for level in ("debug", "info", "warning", "error")}


def pattern(message: ast.expr) -> str:
    """Return a regular expression for the texts of a message."""
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)


def in_code() -> Iterator[tuple[str, str]]:
    """Yield level and pattern of each event. A condition may have one when it begins, and one when it ends."""
    for kind in kinds().values():
        yield logging.getLevelName(kind.level).lower(), re.escape(kind.begins)
        yield "info", re.escape(kind.ends)
    for path in (ROOT / "aosp_plugin").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if isinstance(call, ast.Call) and name in CALLS:
                yield CALLS[name], pattern(call.args[0])


def section(heading: str) -> str:
    """Return the text below a heading of the page."""
    text = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    return re.split(r"\n##+ ", text.partition(f"\n### {heading}\n")[2], maxsplit=1)[0]


def in_document() -> Iterator[tuple[str, str]]:
    """Yield level and message of each event in the table."""
    for messages, level in re.findall(r"^\| (`.+?`) \| (\w+) \|", section("Log events"), re.MULTILINE):
        yield from ((level, message) for message in re.findall("`(.+?)`", messages))


def test_each_log_event_of_the_document_is_in_the_code() -> None:
    code = set(in_code())
    document = list(in_document())
    assert len(document) > 30
    for level, message in document:
        assert any(each == level and re.fullmatch(text, message) for each, text in code), f"{level} {message}"


def test_the_document_has_the_log_events_of_each_kind_of_condition() -> None:
    rows = re.findall(r"^\| `(.+?)` \| (\w+) \| `?(.*?)`? \|", section("Log events of conditions"), re.MULTILINE)
    begins = {(kind.begins, logging.getLevelName(kind.level).lower(), kind.ends) for kind in kinds().values()}
    assert {*rows} == {row for row in begins if row[0]}
    assert all(kind.begins for kind in kinds().values() if kind.ends)
