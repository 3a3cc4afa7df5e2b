"""Log lines as text and as JSON, and the list of events in docs/monitoring.md."""

import ast
import asyncio
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aosp_plugin.framework.observer import working_for
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.worker import Worker

ROOT = Path(__file__).parents[3]
TIME = "2026-01-02T03:04:05.678Z"


def record(message: str, *arguments: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    """Return a log record from 2026."""
    result = logging.getLogger("part").makeRecord("part", level, "file.py", 1, message, arguments, None, extra=extra)
    result.created = 1767323045.678
    return result


def record_with_traceback(message: str) -> logging.LogRecord:
    result = record(message, level=logging.ERROR, device="b1")
    try:
        int("no")
    except ValueError:
        result.exc_info = sys.exc_info()
    return result


@pytest.fixture
def logging_state() -> Iterator[None]:
    """Restore handlers and levels after the test; pytest has handlers of its own."""
    names = (None, "asyncio", "grpc", "watchdog")
    levels = [logging.getLogger(name).level for name in names]
    root = logging.getLogger()
    handlers = root.handlers[:]
    root.handlers[:] = []  # basicConfig would close them
    yield
    root.handlers[:] = handlers
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)


# -- text


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("aosp.io/binder", "aosp.io/binder"),
        (3, "3"),
        (None, "None"),
        ("", '""'),
        ("can't open", '"can\'t open"'),
        ("a=b", '"a=b"'),
        ('a"b', r'"a\"b"'),
        ("a\tb", r'"a\tb"'),
        ("a\u2028b", r'"a\u2028b"'),
        ("a\nb", r'"a\nb"'),
        ("a\r\nb", r'"a\r\nb"'),
        ("a\x1b[31m", r'"a\u001b[31m"'),
    ],
)
def test_text_quotes_ambiguous_values(value: object, written: str) -> None:
    """A line can be split into its fields, has no line breaks, and sends no escape sequences to a terminal."""
    line = logs.TextFormatter().format(record("registered %s", "now", first=value, second=2))
    assert line == f"{TIME} INFO registered now first={written} second=2"


def test_text_escapes_line_breaks_in_the_message() -> None:
    """A file name cannot forge a log line."""
    assert logs.TextFormatter().format(record("a\nb\rc")) == rf"{TIME} INFO a\nb\rc"


def test_traceback_is_in_lines_of_its_own_or_in_a_json_field() -> None:
    event = record_with_traceback("failed")
    first, second, *_, last = logs.TextFormatter().format(event).splitlines()
    assert first == f"{TIME} ERROR failed device=b1"
    assert second == "Traceback (most recent call last):"
    assert last == "ValueError: invalid literal for int() with base 10: 'no'"
    line = logs.JsonFormatter().format(event)
    assert "\n" not in line
    assert json.loads(line)["traceback"].splitlines()[-1] == last


# -- JSON


def test_json_has_one_object_per_line() -> None:
    """Values keep their types; a type that JSON lacks becomes text. Fields cannot replace the standard keys."""
    extra: dict[str, Any] = {"devices": 3, "path": {1}, "text": "é", "level": "x", "time": "y", "logger": "z"}
    event = record("took\n%d s", 3)
    vars(event).update(extra)
    line = logs.JsonFormatter().format(event)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": TIME,
        "level": "info",
        "message": "took\n3 s",
        "logger": "part",
        "devices": 3,
        "path": "{1}",
        "text": "é",
    }


# -- set-up


@pytest.mark.usefixtures("logging_state")
@pytest.mark.parametrize("style", ["text", "json"])
def test_events_are_written_to_standard_error(capsys: pytest.CaptureFixture[str], style: str) -> None:
    """Events below the level are not written. Another set-up, as after a reload, replaces the previous one."""
    logs.set_up("debug", "json" if style == "text" else "text")
    logs.set_up("warning", style)
    logging.getLogger("aosp_plugin.x").info("below")
    with working_for("aosp.io/a"):
        logging.getLogger("aosp_plugin.x").warning("above", extra={"a": 1})
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    if style == "json":
        entry = json.loads(line)
        assert (entry["message"], entry["level"], entry["resource"], entry["a"]) == ("above", "warning", "aosp.io/a", 1)
    else:
        assert line.endswith(" WARNING above resource=aosp.io/a a=1")


@pytest.mark.usefixtures("logging_state")
@pytest.mark.parametrize("name", ["asyncio", "grpc._cython.cygrpc", "watchdog.observers"])
def test_libraries_log_warnings_only(capsys: pytest.CaptureFixture[str], name: str) -> None:
    logs.set_up("debug", "text")
    logging.getLogger(name).info("internal")
    logging.getLogger(name).warning("important")
    assert [line[25:] for line in capsys.readouterr().err.splitlines()] == ["WARNING important"]


# -- the current resource


def fields(**extra: str) -> dict[str, object]:
    """Return the fields of an event after the filter."""
    event = record("x")
    vars(event).update(extra)
    assert logs.add_resource(event)
    return logs.fields(event)


def test_resource_comes_from_the_context() -> None:
    """It is the first field. An event that names a resource itself keeps it."""
    assert fields(a="1") == {"a": "1"}
    with working_for("aosp.io/a"):
        assert list(fields(a="1").items()) == [("resource", "aosp.io/a"), ("a", "1")]
        with working_for("aosp.io/b"):
            assert fields() == {"resource": "aosp.io/b"}
        assert fields() == {"resource": "aosp.io/a"}
        assert fields(resource="aosp.io/c") == {"resource": "aosp.io/c"}
    assert fields() == {}


async def test_tasks_and_threads_inherit_the_resource() -> None:
    async def log(resource: str) -> tuple[dict[str, object], dict[str, object]]:
        with working_for(resource):
            task = asyncio.create_task(asyncio.sleep(0, fields()))
            return await Worker("scan").run(fields), await task

    first, second = await asyncio.gather(log("aosp.io/a"), log("aosp.io/b"))
    assert first == ({"resource": "aosp.io/a"},) * 2
    assert second == ({"resource": "aosp.io/b"},) * 2
    assert fields() == {}


# -- documentation


class Event(NamedTuple):
    """A log event."""

    level: str
    message: str


def events_in_code() -> dict[Event, set[str]]:
    """Return the events that the package logs, with those of their keys that are literals at the log call.

    Messages must be literals without placeholders, so that operators can search for them.
    """
    events: dict[Event, set[str]] = {}
    for path in sorted((ROOT / "aosp_plugin").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="LOG"), attr=level)) if level != "isEnabledFor":
                    message = node.args[0]
                    assert isinstance(message, ast.Constant), f"{path}:{node.lineno}: the message is not a literal"
                    assert len(node.args) == 1, f"{path}:{node.lineno}: details belong in keys, not in the message"
                    event = Event(level, str(message.value))
                    extra = [keyword.value for keyword in node.keywords if keyword.arg == "extra"]
                    keys = [key for each in extra if isinstance(each, ast.Dict) for key in each.keys]
                    events.setdefault(event, set()).update(
                        str(key.value) for key in keys if isinstance(key, ast.Constant) and key.value != "resource"
                    )
                case ast.Call(
                    func=ast.Name(id="LastingProblem"),
                    args=[ast.Name(id="LOG"), ast.Constant(begins), ast.Constant(ends), *levels],
                ):
                    level = ast.unparse(levels[0]).rpartition(".")[2].lower() if levels else "warning"
                    for event in (Event(level, str(begins)), Event("info", str(ends))):
                        events.setdefault(event, set())
                case ast.Call(func=ast.Name(id="HostCall"), args=[_, ast.Constant(str(label))], keywords=keywords):
                    hanging = {"duration_ms", *(keyword.arg for keyword in keywords if keyword.arg == "path")}
                    events[Event("error", f"{label} is hanging")] = hanging
                    events[Event("info", f"{label} is no longer hanging")] = {"duration_ms"}
                    if not any(keyword.arg == "retried" for keyword in keywords):
                        events[Event("error", f"{label} failed, retrying")] = {"error"}
                        events[Event("info", f"{label} recovered")] = set()
    return events


def rows(section: str) -> list[list[str]]:
    """Return the cells of the table in a section of the documentation."""
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    body = text.partition(f"\n### {section}\n")[2].partition("\n##")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in body.splitlines() if line.startswith("| `")]


def test_documentation_lists_every_error_and_warning_and_other_events_with_level_and_keys() -> None:
    code = events_in_code()
    documented = {
        Event(level, message): set(re.findall(r"`(\w+)`", keys))
        for messages, level, keys, _ in rows("Log events")
        for message in re.findall(r"`([^`]+)`", messages)
    }
    assert {event for event in code if event.level in ("error", "warning")} <= set(documented) <= set(code)
    assert {event: missing for event, keys in documented.items() if (missing := code[event] - keys)} == {}
