"""The HTTP endpoints of the plugin: probes, metrics, the status of the node, and the page that shows it.

The page is plain HTML, CSS and JavaScript that get all their data from ``/status``. ``page/index.html`` refers to the
other files, and nothing is loaded from elsewhere.
"""

import contextlib
import hashlib
import os
import pkgutil
import posixpath
import time
from collections.abc import Sequence
from functools import partial

import msgspec

from aosp_plugin import __version__
from aosp_plugin.binder.driver.host import has_selinux
from aosp_plugin.config.keys import Config, status_address
from aosp_plugin.config.sources import node_name
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.service.address import listen_address
from aosp_plugin.framework.service.http import Answer, Route
from aosp_plugin.framework.service.serving import probe_routes
from aosp_plugin.report.document import Known, ProcessReport, Report
from aosp_plugin.report.observation import Observation
from aosp_plugin.report.status import problems, resource_report

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_PAGE = os.path.join(os.path.dirname(__file__), "page")
_FILES = [name for name in os.listdir(_PAGE) if name.endswith((".css", ".js", ".svg"))]


def routes_by_address(
    config: Config, servers: Sequence[ResourceServer], observation: Observation
) -> dict[tuple[str, int], dict[str, Route]]:
    """Return the route of each path by the address at which it is served.

    Probes and metrics are for the kubelet and Prometheus; status and page name pods, and may have another address.
    """
    probes = {"/metrics": lambda: Answer(*observation.metrics.exposition()), **probe_routes(servers)}
    status = {**page_routes(), "/status": _status_route(servers, observation, config.runbook_url)}
    by_address: dict[tuple[str, int], dict[str, Route]] = {}
    for address, group in ((listen_address(config.listen), probes), (status_address(config), status)):
        if address is not None:
            by_address.setdefault(address, {}).update(group)
    return by_address


def _status_route(servers: Sequence[ResourceServer], observation: Observation, runbook_url: str) -> Route:
    """Return the route of the report."""
    started, process = time.time(), ProcessReport.of(os.getpid())

    def answer() -> Answer:
        allocations = observation.pod_resources.latest
        resources = tuple(resource_report(observation.status(server), allocations) for server in servers)
        conditions = [server.conditions() for server in servers]
        report = Report(
            version=__version__,
            node=node_name(),
            started=started,
            allocations=Known(not allocations.problem, allocations.problem),
            resources=resources,
            problems=problems([*zip(resources, conditions, strict=True)], observation.conditions.of("")),
            log=observation.log.records,
            runbook_url=runbook_url,
            selinux=_selinux(),
            process=process,
            last_reload=observation.last_reload,
        )
        return _tagged("application/json", msgspec.json.encode(report))

    return answer


def _selinux() -> bool | None:
    """Return whether the kernel has booted with SELinux; None if this process cannot read that."""
    with contextlib.suppress(OSError):
        return has_selinux()
    return None


def page_routes() -> dict[str, Route]:
    """Return the routes of the page: ``index.html`` at ``/``, and the other files at ``/page/<name>``."""
    return {"/": partial(_file, "index.html"), **{f"/page/{name}": partial(_file, name) for name in _FILES}}


def _file(name: str) -> Answer:
    """Return a file of the page, which is read when it is requested."""
    content = pkgutil.get_data(__name__, f"page/{name}")  # importlib.resources would load zipfile and more
    if content is None:
        raise FileNotFoundError(f"{__name__} has no {name}")
    return _tagged(_TYPES[posixpath.splitext(name)[1]], content)


def _tagged(content_type: str, content: bytes) -> Answer:
    """Return an answer with an entity tag, by which a client that has this content already does not get it again."""
    return Answer(content_type, content, tag=hashlib.sha256(content).hexdigest()[:16])
