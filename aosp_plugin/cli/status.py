"""``aosp-plugin status``: asks the plugin that runs on this node for its report, and prints it.

What is worth telling is ``operate.summary``'s matter. On a terminal rich draws it, which nothing else loads; anywhere
else it is plain text in columns.
"""

from __future__ import annotations

import http.client
import sys
import time
import urllib.parse
from http import HTTPStatus
from typing import TYPE_CHECKING

import click
import msgspec

from aosp_plugin import config
from aosp_plugin.cli.summary import ROWS, Line, summary
from aosp_plugin.daemon.report import Report
from aosp_plugin.errors import ConfigError, HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Group

    from aosp_plugin.cli.summary import Table

ANSWER_WITHIN = 5.0
"""Seconds."""

EVERY = 1.0
"""Seconds between two looks of ``watch``."""

_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - who listens everywhere is asked here
_HTTP_PORT = 80
_STYLES = {"Leaked": "bold red", "Unhealthy": "bold yellow"}


def show(url: str, resource: str | None, *, everything: bool, as_json: bool) -> None:
    """Print the report of the plugin at ``url``; of one resource, if it is named.

    Raises HostError where the plugin can't be asked, and ConfigError where it has no such resource.
    """
    _print(only(ask(url), resource), everything=everything, as_json=as_json)


def watch(url: str, resource: str | None, *, everything: bool, as_json: bool) -> None:
    """Print the report again every second, until KeyboardInterrupt. Only the first look raises what ``show`` does."""
    report = only(ask(url), resource)
    if as_json or not sys.stdout.isatty():
        _print(report, everything=everything, as_json=as_json)
        _repeat(lambda: _print(only(ask(url), resource), everything=everything, as_json=as_json), _complain)
        return
    from rich.live import Live  # noqa: PLC0415 - only here

    with Live(_drawn(summary(report, _rows(everything))), screen=True, auto_refresh=False) as live:
        _repeat(
            lambda: live.update(_drawn(summary(only(ask(url), resource), _rows(everything))), refresh=True),
            lambda error: live.update(_drawn([Line(error, bad=True)]), refresh=True),
        )


def _repeat(look: Callable[[], None], failed: Callable[[str], None]) -> None:
    while True:
        time.sleep(EVERY)
        try:
            look()
        except HostError as error:
            failed(str(error))


def own_url(environment: Mapping[str, str]) -> str:
    """Return where a plugin with these variables listens. Raises ConfigError, and HostError where it does not."""
    address = config.listen_address(config.load({}, environment, None)[0].listen)
    if address is None:
        raise HostError("the plugin listens nowhere, as its listen is empty; --url is for one that does")
    host = _ANYWHERE.get(address[0], address[0])
    return f"http://[{host}]:{address[1]}" if ":" in host else f"http://{host}:{address[1]}"


def ask(url: str) -> Report:
    """Return the report of the plugin at ``url``. Raises HostError, and ConfigError where ``url`` is none."""
    connection, path = _connection(url)
    try:
        connection.request("GET", f"{path}/status")
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise HostError(
            f"no plugin answers at {url} ({error}): is aosp-plugin serve running on this node? --url says where it is"
        ) from error
    finally:
        connection.close()
    if answer.status != HTTPStatus.OK:
        raise HostError(f"the plugin at {url} answers {answer.status}: {body.decode(errors='replace').strip()[:200]}")
    try:
        return msgspec.json.decode(body, type=Report)
    except msgspec.DecodeError as error:
        raise HostError(f"what answers at {url} is no aosp-plugin of this version: {error}") from error


def _connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection that is not made yet, and the path in ``url``. Raises ConfigError."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "http" and parts.hostname:
            port = parts.port or _HTTP_PORT
            return http.client.HTTPConnection(parts.hostname, port, timeout=ANSWER_WITHIN), parts.path.rstrip("/")
    except ValueError:
        pass  # a port that is none: said below
    raise ConfigError(f"flag --url: {url!r} is not allowed; allowed: http://HOST:PORT")


def only(report: Report, resource: str | None) -> Report:
    """Return the report of one resource, or of all. Raises ConfigError where there is no such one."""
    if resource is None:
        return report
    found = tuple(one for one in report.resources if one.name == resource)
    if not found:
        names = ", ".join(one.name for one in report.resources)
        raise ConfigError(f"flag --resource: {resource!r} is not served; allowed: {names}")
    return msgspec.structs.replace(report, resources=found)


def _rows(everything: bool) -> int | None:  # noqa: FBT001 - of two values
    return None if everything else ROWS


def _print(report: Report, *, everything: bool, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(report))
    elif sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - only here

        Console().print(_drawn(summary(report, _rows(everything))))
    else:
        click.echo(plain(summary(report, _rows(everything))))
    sys.stdout.flush()


def _complain(problem: str) -> None:
    click.echo(f"aosp-plugin: {problem}", err=True)


def plain(parts: Sequence[Line | Table]) -> str:
    """Return lines and tables as text in columns."""
    lines: list[str] = []
    for part in parts:
        if isinstance(part, Line):
            lines += [""] if part.head and lines else []
            lines.append(part.text if part.head else f"  {part.text}")
            continue
        rows = [part.columns, *part.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", f"  {part.title}"]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append(f"    {'  '.join(cells)}".rstrip())
        if part.left:
            lines.append(f"    {_left(part)}")
    return "\n".join(lines)


def _drawn(parts: Sequence[Line | Table]) -> Group:
    """Return the same for rich."""
    from rich import box  # noqa: PLC0415 - only here
    from rich.console import Group  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn: list[Padding] = []
    for part in parts:
        if isinstance(part, Line):
            style = "bold red" if part.bad else "bold" if part.head else ""
            drawn.append(Padding(Text(part.text, style), (int(part.head and bool(drawn)), 0, 0, 0 if part.head else 2)))
            continue
        title = Text(part.title, _STYLES.get(part.title, "bold"))
        table = RichTable(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False)
        for column in part.columns:
            table.add_column(column, overflow="fold")
        for row in part.rows:
            table.add_row(*map(Text, row))
        drawn.append(Padding(table, (1, 0, 0, 2)))
        if part.left:
            drawn.append(Padding(Text(_left(part), "dim"), (0, 0, 0, 2)))
    return Group(*drawn)


def _left(table: Table) -> str:
    return f"and {table.left:,} more: --all shows them"
