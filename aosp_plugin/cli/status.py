"""``aosp-plugin status`` and ``reload``: ask the plugin on this node for its status report, and let it reload."""

import contextlib
import datetime
import http.client
import json
import os
import re
import signal
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from aosp_plugin.cli import aligned, echo
from aosp_plugin.config import keys, sources
from aosp_plugin.config.convert import shown
from aosp_plugin.framework.conditions import Severity
from aosp_plugin.framework.errors import ConfigError, ServiceError
from aosp_plugin.framework.service.address import joined_address
from aosp_plugin.report.document import DeviceReport, Problem, ProcessReport, ReloadReport, Report, ResourceReport

TIMEOUT = 10.0
"""Seconds to wait for the next part of the answer."""
MAX_ANSWER = 8 << 20
"""Bytes. A device takes some 300 of them."""

RELOAD_TIMEOUT = 60.0
"""Seconds to wait for the outcome: each part of the configuration that hangs is given up after 10 s."""
PAUSE = 0.1
"""Seconds between two questions."""

_SERVE = re.compile(rb"aosp[-_]plugin[^\0/]*\0serve\0")
"""Matches the command line of a plugin: the installed script, the zipapp or the package, and its command."""
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a server on all addresses is reached on loopback
_HTTP_PORT = 80
_MAX_TEXT = 200
"""Characters of an answer in an error."""
_SELINUX: Final = {
    True: "yes, as an unchanged Android requires",
    False: "no; an unchanged Android finds no services here, redroid does not need it: see docs/hosts.md",
    None: "unknown; an unchanged Android requires it, see docs/hosts.md",
}


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

    A running plugin may have read its configuration file before that became invalid, and in a pod its addresses are
    variables: without a valid file, those count. Raises ConfigError for an invalid one of them, and ServiceError if the
    plugin does not serve its status.
    """
    try:
        loaded = sources.load({}, environment, None)[0]
    except ConfigError:
        variables = {name: value for name, value in environment.items() if name != sources.FILE_VARIABLE}
        loaded = sources.load({}, variables, None)[0]
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


def summary(report: Report, now: float) -> list[str]:
    """Return a report as lines of text. ``now`` is its time in seconds since the epoch."""
    started = datetime.datetime.fromtimestamp(report.started).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    lines = [f"{report.node}: aosp-plugin {report.version}, up since {started}"]
    lines.append(f"  SELinux: {_SELINUX[report.selinux]}")
    lines += _problems_of("", report, now)
    for resource in report.resources:
        lines += ["", f"{resource.name}: {_registration(resource, now)}"]
        lines.append(f"  {_counts(resource, allocations_known=report.allocations.known)}")
        lines += _problems_of(resource.name, report, now)
        if rows := [_row(device, now) for device in resource.devices if device.reason or device.pods]:
            lines += ["", *(f"  {row}" for row in aligned([("DEVICE", "STATE", "AGE", "POD", "REASON"), *rows]))]
    return lines


def problem_lines(report: Report, now: float) -> Iterator[str]:
    """Yield a line for each problem of a report: its severity, resource, age, what is wrong, and the first devices."""
    for problem in report.problems:
        yield f"{problem.severity}: {problem.resource or report.node}: {_sentence(problem, now)}"


def _problems_of(resource: str, report: Report, now: float) -> Iterator[str]:
    """Yield a line for each problem of a resource; of the node if it is empty."""
    for problem in report.problems:
        if problem.resource == resource:
            yield f"  {problem.severity}: {_sentence(problem, now)}"


def _sentence(problem: Problem, now: float) -> str:
    since = "" if problem.since is None else f" (for {age(now, problem.since)})"
    devices = f": {', '.join(problem.devices)}" if problem.devices else ""
    more = f" and {problem.count - len(problem.devices):,} more" if problem.count > len(problem.devices) else ""
    return f"{problem.summary}{since}{devices}{more}"


def _registration(resource: ResourceReport, now: float) -> str:
    """Return whether the resource is registered, for how long, and how many devices the kubelet or API server has."""
    since, driver = age(now, resource.since), resource.driver
    if not resource.registered:
        return f"NOT registered with the kubelet for {since}"
    text = f"registered with the kubelet for {since}"
    if driver is not None:
        return (
            f"{text} as DRA driver {driver.name}, with {driver.slices_confirmed:,} of {driver.slices:,} ResourceSlices "
            f"and {driver.claims:,} prepared claim{'s' * (driver.claims != 1)}"
        )
    if resource.kubelet_allocatable is None:
        return text
    total = resource.counts.total - resource.truncated
    return f"{text}, which can allocate {resource.kubelet_allocatable:,} of {total:,} devices"


def _counts(resource: ResourceReport, *, allocations_known: bool) -> str:
    counts = resource.counts
    parts = [f"{counts.healthy:,} healthy", f"{counts.unhealthy:,} unhealthy"]
    if allocations_known:
        gone = f" ({counts.gone:,} gone)" if counts.gone else ""
        parts += [f"{counts.allocated:,} allocated{gone}", f"{counts.free:,} free"]
    else:
        parts.append("allocation unknown")
    return f"{counts.total:,} device{'s' * (counts.total != 1)}: {', '.join(parts)}"


def _row(device: DeviceReport, now: float) -> tuple[str, ...]:
    """Return a device with the pods that have it. Its age is that of its state."""
    since = "-" if device.since is None else age(now, device.since)
    pods = ", ".join(f"{pod.namespace}/{pod.name}" for pod in device.pods)
    return device.id, device.state, since, pods or "-", device.detail or device.reason


def age(now: float, since: float) -> str:
    """Return a duration as ``kubectl get`` shows ages: 12s, 5m, 3h, 2d."""
    seconds = max(0, int(now - since))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def reload(url: str) -> ReloadReport:
    """Reload the configuration of the plugin at ``url``, and return the outcome.

    Raises ServiceError if its process cannot be found from here, or has no outcome, ConfigError for an invalid URL, and
    OSError if the user may not signal the process.
    """
    process = fetch(url).process
    # Behind a forwarded port is a process of another host, or another container, whose ID means another process here.
    # While no plugin runs, any user can listen at its address and name a process of root.
    if process is None or ProcessReport.of(process.pid) != process or not _serves(process.pid):
        raise ServiceError(f"the process of the plugin at {url} is not visible here; run aosp-plugin reload in its pod")
    requested = time.time()
    os.kill(process.pid, signal.SIGHUP)
    end = time.monotonic() + RELOAD_TIMEOUT
    while time.monotonic() < end:
        time.sleep(PAUSE)
        if ProcessReport.of(process.pid) != process:
            raise ServiceError("the plugin ended during the reload; its log says why")
        with contextlib.suppress(ServiceError):  # it cannot be reached while it executes its program again
            outcome = fetch(url).last_reload
            if outcome is not None and outcome.began >= requested:
                return outcome
    raise ServiceError(
        f"the plugin at {url} reports no outcome of the reload after {RELOAD_TIMEOUT:.0f} s; see its log"
    )


def _serves(pid: int) -> bool:
    """Return whether the process with this ID is a plugin, by its command line. Raises OSError if there is none."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return _SERVE.search(file.read()) is not None
