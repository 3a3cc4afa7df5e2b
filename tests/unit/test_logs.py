"""One event a line, as text or as JSON."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.framework.aio import run_in_daemon_thread
from aosp_plugin.framework.observer import milliseconds, working_for
from aosp_plugin.framework.service import logs

if TYPE_CHECKING:
    from collections.abc import Iterator


def record(message: str, *arguments: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    """Return what logging makes of an event of 2026."""
    made = logging.getLogger("room").makeRecord("room", level, "file.py", 1, message, arguments, None, extra=extra)
    made.created = 1767323045.678
    return made


def failure(message: str) -> logging.LogRecord:
    """Return an event with a traceback."""
    made = record(message, level=logging.ERROR, device="b1")
    try:
        int("no")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


@pytest.fixture
def restored() -> Iterator[None]:
    """Put the loggers back as they were; pytest's own handlers are among them."""
    names = (None, "asyncio", "grpc", "watchdog")
    levels = [logging.getLogger(name).level for name in names]
    root = logging.getLogger()
    handlers = root.handlers[:]
    # basicConfig closes what it takes away, and pytest's handlers are needed again.
    root.handlers[:] = []
    yield
    root.handlers[:] = handlers
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)


def test_text_has_time_level_message_and_fields() -> None:
    """The time is UTC with milliseconds; fields follow as key=value."""
    line = logs.TextFormatter().format(record("registered %s", "now", resource="aosp.io/binder", devices=3))
    assert line == "2026-01-02T03:04:05.678Z INFO registered now resource=aosp.io/binder devices=3"


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
    ],
)
def test_text_quotes_values_that_would_run_into_the_next_field(value: object, written: str) -> None:
    """So that a line can be taken apart again, by whoever reads spaces and equal signs."""
    line = logs.TextFormatter().format(record("x", first=value, second=2))
    assert line == f"2026-01-02T03:04:05.678Z INFO x first={written} second=2"


def test_a_message_with_line_ends_stays_on_its_line() -> None:
    """A file's name must not be able to write a line of its own into the log."""
    line = logs.TextFormatter().format(record("a\nb\rc"))
    assert line == r"2026-01-02T03:04:05.678Z INFO a\nb\rc"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_field_with_line_ends_stays_on_its_line(end: str) -> None:
    """Nor must an error's text, which another process may have written."""
    assert len(logs.TextFormatter().format(record("x", error=f"one{end}two")).splitlines()) == 1


def test_text_has_a_traceback_on_lines_of_its_own() -> None:
    """It is for people, behind the line of the event."""
    first, second, *_, last = logs.TextFormatter().format(failure("broken")).splitlines()
    assert first == "2026-01-02T03:04:05.678Z ERROR broken device=b1"
    assert second == "Traceback (most recent call last):"
    assert last == "ValueError: invalid literal for int() with base 10: 'no'"


def test_json_is_one_object_a_line_with_the_event_s_fields() -> None:
    """Values keep their types; what JSON has no word for becomes text."""
    line = logs.JsonFormatter().format(record("took\n%d s", 3, level=logging.WARNING, devices=3, path={1}, name_of="é"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-02T03:04:05.678Z",
        "level": "warning",
        "message": "took\n3 s",
        "logger": "room",
        "devices": 3,
        "path": "{1}",
        "name_of": "é",
    }


def test_json_has_a_traceback_as_a_field() -> None:
    """Still on the same line."""
    entry: dict[str, Any] = json.loads(logs.JsonFormatter().format(failure("broken")))
    assert "\n" not in logs.JsonFormatter().format(failure("broken"))
    assert entry["traceback"].startswith("Traceback (most recent call last):")
    assert entry["traceback"].endswith("ValueError: invalid literal for int() with base 10: 'no'")
    assert entry["device"] == "b1"
    assert "traceback" not in json.loads(logs.JsonFormatter().format(record("fine")))


def test_fields_are_what_was_given_as_extra() -> None:
    """Nothing of what logging itself notes, with or without a running task."""
    assert logs.fields(record("x", a=1)) == {"a": 1}
    assert logs.fields(failure("x")) == {"device": "b1"}


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("style", ["text", "json"])
def test_events_go_to_standard_error(capsys: pytest.CaptureFixture[str], style: str) -> None:
    """In the style that was asked for, from the level that was asked for."""
    logs.set_up("warning", style)
    logging.getLogger("aosp_plugin.x").info("quiet")
    logging.getLogger("aosp_plugin.x").warning("loud", extra={"a": 1})
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    if style == "json":
        entry = json.loads(line)
        assert (entry["message"], entry["level"], entry["a"]) == ("loud", "warning", 1)
    else:
        assert line.endswith(" WARNING loud a=1")


@pytest.mark.usefixtures("restored")
def test_setting_up_again_replaces_the_first_one(capsys: pytest.CaptureFixture[str]) -> None:
    """After the configuration was read again each event is still written once."""
    logs.set_up("error", "json")
    logs.set_up("debug", "text")
    logging.getLogger("aosp_plugin.x").debug("once")
    assert [line[25:] for line in capsys.readouterr().err.splitlines()] == ["DEBUG once"]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", ["asyncio", "grpc._cython.cygrpc", "watchdog.observers"])
def test_libraries_tell_warnings_only(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Even at the level debug: their plumbing is not the operator's."""
    logs.set_up("debug", "text")
    logging.getLogger(name).info("plumbing")
    logging.getLogger(name).warning("a leak")
    assert [line[25:] for line in capsys.readouterr().err.splitlines()] == ["WARNING a leak"]


def test_an_event_can_not_replace_the_line_s_own_keys() -> None:
    """Whatever an event calls its fields, time, level, message and logger are what they are."""
    record = logging.makeLogRecord({"msg": "hello", "levelname": "INFO", "level": "x", "time": "y", "logger": "z"})
    entry = json.loads(logs.JsonFormatter().format(record))
    assert (entry["level"], entry["message"], entry["logger"]) == ("info", "hello", record.name)
    assert entry["time"].endswith("Z")


def test_a_terminal_is_sent_no_escapes() -> None:
    """A field that holds an escape sequence is shown with a backslash, not obeyed."""
    record = logging.makeLogRecord({"msg": "hello", "levelname": "INFO", "path": "a\x1b[31m"})
    assert logs.TextFormatter().format(record).endswith('path="a\\u001b[31m"')


def test_the_resource_comes_first() -> None:
    """Lines of several resources are told apart at a glance."""
    line = logs.TextFormatter().format(record("changed", devices=3, resource="aosp.io/a"))
    assert line.endswith(" changed resource=aosp.io/a devices=3")


def named(**extra: str) -> dict[str, object]:
    """Return the fields of an event after the filter."""
    made = record("x")
    vars(made).update(extra)
    assert logs.name_resource(made)
    return logs.fields(made)


def test_an_event_is_about_the_resource_that_is_worked_for() -> None:
    """Unless it says itself which one it is about, or none is worked for."""
    assert named(a="1") == {"a": "1"}
    with working_for("aosp.io/a"):
        assert named(a="1") == {"resource": "aosp.io/a", "a": "1"}
        with working_for("aosp.io/b"):
            assert named() == {"resource": "aosp.io/b"}
        assert named() == {"resource": "aosp.io/a"}
        assert named(resource="aosp.io/c") == {"resource": "aosp.io/c"}
    assert named() == {}


async def test_tasks_and_threads_work_for_the_resource_that_they_were_begun_for() -> None:
    """Each for its own, at the same time: a look in a thread logs the right one."""

    async def of(resource: str) -> tuple[dict[str, object], dict[str, object]]:
        with working_for(resource):
            in_task = asyncio.create_task(asyncio.sleep(0, named()))
            return await run_in_daemon_thread(named, "look"), await in_task

    first, second = await asyncio.gather(of("aosp.io/a"), of("aosp.io/b"))
    assert first == ({"resource": "aosp.io/a"},) * 2
    assert second == ({"resource": "aosp.io/b"},) * 2
    assert named() == {}


@pytest.mark.usefixtures("restored")
def test_what_is_set_up_names_the_resource(capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever room logs, and gRPC and asyncio too."""
    logs.set_up("info", "text")
    with working_for("aosp.io/a"):
        logging.getLogger("aosp_plugin.binder.discovery.store").info("skipped")
        logging.getLogger("grpc._cython.cygrpc").error("unexpected")
    assert [line[25:] for line in capsys.readouterr().err.splitlines()] == [
        "INFO skipped resource=aosp.io/a",
        "ERROR unexpected resource=aosp.io/a",
    ]


def test_durations_are_milliseconds() -> None:
    """To a hundredth, as an Allocate takes a fraction of one."""
    assert milliseconds(1.2345678) == 1234.57


ROOT = Path(__file__).parents[2]
LEVELS = {"error": "Errors", "exception": "Errors", "critical": "Errors", "warning": "Warnings"}
"""The method to the section of the documentation."""


def logged() -> Iterator[tuple[str, ast.Call, str]]:
    """Yield each call of LOG in the code: the method, the call, and where it is."""
    for path in sorted((ROOT / "aosp_plugin").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="LOG"), attr=method)) if method != "isEnabledFor":
                    yield method, node, f"{path.relative_to(ROOT)}:{node.lineno}"


def message(call: ast.Call, where: str) -> str:
    """Return the text of a call, with an ellipsis for what it leaves open."""
    match call.args[0]:
        case ast.Constant(value=str(text)):
            return re.sub(r"%\w", "…", text)
    raise AssertionError(f"{where}: the message is no literal, which nobody can look for")


def rows(section: str) -> list[str]:
    """Return the first cells of the table in a section of the documentation."""
    text = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
    body = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [line.split("|")[1].strip() for line in body.splitlines() if line.startswith("| `")]


def test_every_message_is_a_literal() -> None:
    """What differs from one time to the next is a field."""
    assert all(message(call, where) for _, call, where in logged())


@pytest.mark.parametrize("section", ["Errors", "Warnings"])
def test_the_documentation_has_what_asks_for_a_person(section: str) -> None:
    """Both ways: each message at these levels once, and no other one."""
    in_code = {f"`{message(call, where)}`" for method, call, where in logged() if LEVELS.get(method) == section}
    assert in_code == set(rows(section))
    assert len(rows(section)) == len(set(rows(section)))


def test_the_documentation_has_the_keys() -> None:
    """Each that the code gives by name, so that a query that uses one is not broken by chance."""
    documented = {key for cell in rows("Keys") for key in re.findall(r"`(\w+)`", cell)}
    given = {
        (constant.value, where)
        for _, call, where in logged()
        for keyword in call.keywords
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict)
        for constant in keyword.value.keys
        if isinstance(constant, ast.Constant)
    }
    assert {(key, where) for key, where in given if key not in documented} == set()
    assert len(given) > 20
