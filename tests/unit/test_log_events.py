"""docs/monitoring.md names each log event of the code with its level, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALLS = {f"LOG.{level}": level for level in ("debug", "info", "warning", "error")}


def pattern(message: ast.expr) -> str:
    """Return a regular expression for the texts of a message."""
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)


def in_code() -> Iterator[tuple[str, str]]:
    """Yield level and pattern of each event. A problem that lasts has one when it begins, and one when it ends."""
    for path in (ROOT / "aosp_plugin").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if isinstance(call, ast.Call) and name == "LastingProblem":
                _, begins, ends, *level = call.args
                yield ast.unparse(level[0]).removeprefix("logging.").lower() if level else "warning", pattern(begins)
                yield "info", pattern(ends)
            elif isinstance(call, ast.Call) and name in CALLS:
                yield CALLS[name], pattern(call.args[0])


def in_document() -> Iterator[tuple[str, str]]:
    """Yield level and message of each event in the table and in the list below it."""
    text = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    section = text.partition("\n### Log events\n")[2].partition("\n## ")[0]
    for messages, level in re.findall(r"^\| (`.+?`) \| (\w+) \|", section, re.MULTILINE):
        yield from ((level, message) for message in re.findall("`(.+?)`", messages))
    for level, messages in re.findall(r"^- `(\w+)`: (.+(?:\n  .+)*)", section, re.MULTILINE):
        yield from ((level, message) for message in re.findall("`(.+?)`", messages))


def test_the_document_has_each_log_event_of_the_code_and_no_other() -> None:
    code, document = set(in_code()), set(in_document())
    fits = {(event, written) for event in code for written in document if _is(event, written)}
    assert sorted(code - {event for event, _ in fits}) == [], "not in the document"
    assert sorted(document - {written for _, written in fits}) == [], "not in the code"


def _is(event: tuple[str, str], written: tuple[str, str]) -> bool:
    return event[0] == written[0] and re.fullmatch(event[1], written[1]) is not None
