"""``aosp-plugin status``: fetches the status report of the plugin on this node and prints it as text or JSON."""

import http.client
import shutil
import sys
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus

import click
import msgspec

from aosp_plugin.cli.summary import DEFAULT_ROWS, problem_lines, summary
from aosp_plugin.config import keys, sources
from aosp_plugin.config.convert import shown
from aosp_plugin.framework.errors import ConfigError, ServiceError
from aosp_plugin.framework.service.address import joined_address
from aosp_plugin.report.document import DeviceReport, Report, Severity, State

TIMEOUT = 5.0
"""Seconds to wait for the plugin's answer."""

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a server on all addresses is reached on loopback
_HTTP_PORT = 80


def show(report: Report, *, all_rows: bool, as_json: bool) -> None:
    """Print a report as text, with colors on a terminal and cut to its width, or as JSON."""
    if as_json:
        click.echo(msgspec.json.encode(report))
        return
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for line in summary(report, None if all_rows else DEFAULT_ROWS):
        text = line.text if len(line.text) <= columns else f"{line.text[: columns - 1]}…"
        click.secho(text, bold=line.bold or None, fg=line.color, reset=bool(line.bold or line.color))


def check(report: Report) -> int:
    """Print a line for each problem; return their number, without notices."""
    for line in problem_lines(report):
        click.echo(line)
    return sum(problem.severity is not Severity.NOTICE for problem in report.problems)


def selected(
    report: Report,
    resource: str | None = None,
    namespace: str | None = None,
    pod: str | None = None,
    *,
    unhealthy: bool = False,
) -> Report:
    """Return the part of a report with this resource, and with devices of pods in this namespace and of this name.

    ``unhealthy`` selects unhealthy, leaked and gone devices. Conditions combine; counts are always those of the whole
    resource. Raises ConfigError for an unknown resource.
    """

    def matches(device: DeviceReport) -> bool:
        if unhealthy and not device.reason and device.state is not State.LEAKED:
            return False
        has_pod = any(namespace in {None, each.namespace} and pod in {None, each.name} for each in device.pods)
        return has_pod or not (namespace or pod)

    resources, problems = report.resources, report.problems
    if resource is not None:
        resources = tuple(each for each in resources if each.name == resource)
        problems = tuple(problem for problem in problems if problem.resource in {"", resource})
        if not resources:
            names = ", ".join(each.name for each in report.resources)
            raise ConfigError(f"flag --resource: {shown(resource)} is not served; allowed: {names}")
    if namespace or pod or unhealthy:
        parts = []
        for each in resources:
            devices = tuple(filter(matches, each.devices))
            names_of_devices = {name for device in devices for name in device.binder_devices}
            leaks = tuple(leak for leak in each.leaks if leak.binder_device in names_of_devices)
            parts.append(msgspec.structs.replace(each, devices=devices, leaks=leaks))
        resources = tuple(parts)
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
