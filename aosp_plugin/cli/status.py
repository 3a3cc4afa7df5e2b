"""``aosp-plugin status``: fetches the status report of the plugin on this node and prints it as text or JSON."""

import http.client
import json
import time
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from aosp_plugin.cli.summary import problem_lines, summary
from aosp_plugin.cli.terminal import echo
from aosp_plugin.config import keys, sources
from aosp_plugin.config.convert import shown
from aosp_plugin.framework.conditions import Severity
from aosp_plugin.framework.errors import ConfigError, ServiceError
from aosp_plugin.framework.service.address import joined_address
from aosp_plugin.report.document import Report

TIMEOUT = 10.0
"""Seconds to wait for the next part of the answer."""
MAX_ANSWER = 8 << 20
"""Bytes. A device takes some 300 of them."""

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a server on all addresses is reached on loopback
_HTTP_PORT = 80
_MAX_TEXT = 200
"""Characters of an answer in an error."""


def show(report: Report, *, as_json: bool) -> None:
    """Print a report as text, or as JSON."""
    lines = (
        [json.dumps(msgspec.to_builtins(report), separators=(",", ":"))] if as_json else summary(report, time.time())
    )
    for line in lines:
        echo(line)


def check(report: Report) -> int:
    """Print a line for each problem; return their number, without notices."""
    for line in problem_lines(report, time.time()):
        echo(line)
    return sum(problem.severity is not Severity.NOTICE for problem in report.problems)


def selected(report: Report, resource: str | None) -> Report:
    """Return the part of a report with this resource; all of it for None. Raises ConfigError for an unknown one."""
    if resource is None:
        return report
    resources = tuple(each for each in report.resources if each.name == resource)
    if not resources:
        names = ", ".join(each.name for each in report.resources)
        raise ConfigError(f"flag --resource: {shown(resource)} is not served; allowed: {names}")
    problems = tuple(problem for problem in report.problems if problem.resource in {"", resource})
    return msgspec.structs.replace(report, resources=resources, problems=problems)


def own_url(environment: Mapping[str, str]) -> str:
    """Return the URL of a plugin that is started with these environment variables.

    Raises ConfigError for an invalid configuration, and ServiceError if the plugin does not serve its status.
    """
    loaded = sources.load({}, environment, None)[0]
    address = keys.status_address(loaded)
    if address is None:
        key = "listen" if loaded.status_listen is None else "status_listen"
        raise ServiceError(f"the plugin does not serve its status: {key} is empty; use --url for another address")
    return f"http://{joined_address((_LOOPBACK.get(address[0], address[0]), address[1]))}"


def fetch(url: str) -> Report:
    """Return the report of the plugin at ``url``.

    Raises ServiceError if the plugin cannot be reached, and ConfigError for an invalid URL.
    """
    connection, path = _connection(url)
    try:
        connection.request("GET", f"{path}/status", headers={"Connection": "close"})
        response = connection.getresponse()
        body = response.read(MAX_ANSWER + 1)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error)[:_MAX_TEXT]
        raise ServiceError(
            f"no plugin answers at {url} ({reason}); check that aosp-plugin serve is running on this node, "
            "or set its address with --url"
        ) from error
    finally:
        connection.close()
    if len(body) > MAX_ANSWER:
        raise ServiceError(f"the answer from {url} is longer than {MAX_ANSWER >> 20} MiB")
    if response.status != HTTPStatus.OK:
        text = body.decode(errors="replace").strip()[:_MAX_TEXT]
        raise ServiceError(f"the plugin at {url} answers with HTTP status {response.status}: {text}")
    try:
        return msgspec.json.decode(body, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceError(
            f"the answer from {url} is not a status report of this version of aosp-plugin: {str(error)[:_MAX_TEXT]}"
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
