"""``aosp-plugin status``: fetches the status report of the plugin on this node and prints it as text or JSON."""

from __future__ import annotations

import http.client
import shutil
import sys
import time
import urllib.parse
from http import HTTPStatus
from typing import TYPE_CHECKING

import click
import msgspec

from aosp_plugin import config
from aosp_plugin.cli.summary import DEFAULT_ROWS, Line, problem_lines, summary
from aosp_plugin.config import shown
from aosp_plugin.errors import ConfigError, ServiceError
from aosp_plugin.report.document import Report, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.cli.selection import Selection

TIMEOUT = 5.0
"""Seconds to wait for the plugin's answer."""

WATCH_INTERVAL = 1.0
"""Seconds between two reports."""

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a server on all addresses is reached on loopback
_HTTP_PORT = 80


def show(url: str, selection: Selection, *, watch: bool, all_rows: bool, as_json: bool) -> None:
    """Print the selected part of the report of the plugin at ``url``.

    ``watch`` prints it every second until KeyboardInterrupt. A terminal is repainted; elsewhere each report is
    appended. Raises ServiceError if the plugin cannot be reached, and ConfigError if it does not serve the resource.
    Once the first report has been printed, a plugin that cannot be reached is a message and is asked again.
    """
    repaint = watch and sys.stdout.isatty() and not as_json
    report = selection.of(fetch(url))
    while True:
        if as_json:
            click.echo(msgspec.json.encode(report))
        else:
            _print(summary(report, None if all_rows else DEFAULT_ROWS), repaint=repaint)
        if not watch:
            return
        report = _next_report(url, selection, repaint=repaint)


def check(url: str, selection: Selection) -> int:
    """Print a line for each problem; return their number, without notices. Raises what ``show`` raises."""
    report = selection.of(fetch(url))
    for line in problem_lines(report):
        click.echo(line)
    return sum(problem.severity is not Severity.NOTICE for problem in report.problems)


def _next_report(url: str, selection: Selection, *, repaint: bool) -> Report:
    """Wait for the next report; print why there is none."""
    while True:
        time.sleep(WATCH_INTERVAL)
        try:
            return selection.of(fetch(url))
        except ServiceError as error:
            if repaint:
                _print([Line(str(error), color="red")], repaint=True)
            else:
                click.echo(f"aosp-plugin: {error}", err=True)


def _print(lines: list[Line], *, repaint: bool) -> None:
    if repaint:
        click.clear()
        height = shutil.get_terminal_size().lines - 1
        if len(lines) > height:
            lines = [*lines[: height - 1], Line("...")]
    click.echo(_render(lines))


def _render(lines: list[Line]) -> str:
    """Return lines as text; on a terminal with colors, and cut to its width."""
    if not sys.stdout.isatty():
        return "\n".join(line.text for line in lines)
    width = shutil.get_terminal_size().columns
    return "\n".join(_drawn(line, width) for line in lines)


def _drawn(line: Line, width: int) -> str:
    text = line.text if len(line.text) <= width else f"{line.text[: width - 1]}…"
    return click.style(text, bold=line.bold, fg=line.color) if line.bold or line.color else text


def own_url(environment: Mapping[str, str]) -> str:
    """Return the URL of a plugin that is started with these environment variables.

    Raises ConfigError for an invalid configuration, and ServiceError if the plugin does not serve its status.
    """
    loaded = config.load({}, environment, None)[0]
    address = config.status_address(loaded)
    if address is None:
        key = "listen" if loaded.status_listen is None else "status_listen"
        raise ServiceError(f"the plugin does not serve its status: {key} is empty; use --url for another address")
    return f"http://{config.joined_address((_LOOPBACK.get(address[0], address[0]), address[1]))}"


def fetch(url: str) -> Report:
    """Return the report of the plugin at ``url``.

    Raises ServiceError if the plugin cannot be reached, and ConfigError for an invalid URL.
    """
    connection, path = _connection(url)
    try:
        connection.request("GET", f"{path}/status")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServiceError(
            f"no plugin answers at {url} ({reason}); check that aosp-plugin serve is running on this node, "
            "or set its address with --url"
        ) from error
    finally:
        connection.close()
    if response.status != HTTPStatus.OK:
        text = body.decode(errors="replace").strip()[:200]
        raise ServiceError(f"the plugin at {url} answers with HTTP status {response.status}: {text}")
    try:
        return msgspec.json.decode(body, type=Report)
    except msgspec.DecodeError as error:
        raise ServiceError(
            f"the answer from {url} is not a status report of this version of aosp-plugin: {error}"
        ) from error


def _connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection that is not open yet, and the path of ``url``. Raises ConfigError."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "http" and parts.hostname:
            port = parts.port or _HTTP_PORT
            path = parts.path.rstrip("/").removesuffix("/status")
            return http.client.HTTPConnection(parts.hostname, port, timeout=TIMEOUT), path
    except ValueError:
        pass  # an invalid port
    raise ConfigError(f"flag --url: {shown(url)} is not allowed; allowed: http://HOST:PORT")
