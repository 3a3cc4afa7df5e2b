"""Log lines as text and as JSON."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from aosp_plugin.framework.service import logs
from aosp_plugin.framework.service.logs import working_for
from aosp_plugin.framework.worker import Worker

TIME = "2026-01-02T03:04:05.678Z"


def record(message: str, *arguments: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    """Return a log record from 2026."""
    result = logging.getLogger("part").makeRecord("part", level, "file.py", 1, message, arguments, None, extra=extra)
    result.created = 1767323045.678
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


def test_text_quotes_ambiguous_values() -> None:
    """A line can be split into its fields, has no line breaks, and sends no escape sequences to a terminal."""
    for value, written in (
        ("aosp.io/binder", "aosp.io/binder"),
        (3, "3"),
        ("", '""'),
        ("can't open", '"can\'t open"'),
        ("a=b", '"a=b"'),
        ('a"b', r'"a\"b"'),
        ("a\u2028b", r'"a\u2028b"'),
        ("a\x1b[31m", r'"a\u001b[31m"'),
    ):
        line = logs.TextFormatter().format(record("registered\n%s\r", "now", first=value, second=2))
        assert line == rf"{TIME} INFO registered\nnow\r first={written} second=2"


def test_traceback_is_in_lines_of_its_own_or_in_a_json_field() -> None:
    event = record("failed", level=logging.ERROR, device="b1")
    try:
        int("no")
    except ValueError:
        event.exc_info = sys.exc_info()
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
    """Events below the level are not written. Another set-up replaces the previous one."""
    logs.set_up("debug", "json" if style == "text" else "text")
    logs.set_up("warning", style)
    logging.getLogger("aosp_plugin.x").info("below")
    with working_for("aosp.io/a"):
        logging.getLogger("aosp_plugin.x").warning("above", extra={"a": 1})
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert ("above" in line, "aosp.io/a" in line, line.startswith("{")) == (True, True, style == "json")


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
        assert fields(resource="aosp.io/c") == {"resource": "aosp.io/c"}
        assert fields() == {"resource": "aosp.io/a"}
    assert fields() == {}


async def test_tasks_and_threads_inherit_the_resource() -> None:
    with working_for("aosp.io/a"):
        task = asyncio.create_task(asyncio.sleep(0, fields()))
        found = await Worker("scan").run(fields), await task
    assert found == ({"resource": "aosp.io/a"},) * 2
    assert fields() == {}
