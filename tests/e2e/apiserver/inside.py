"""Runs in the sandbox: start etcd and kube-apiserver, and run the checks."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aosp_plugin.framework.apiserver.client import DEFAULT_LIMITS, ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.credentials import tls_context
from tests.api_contract.checks import CHECKS
from tests.e2e.apiserver import claims, policies
from tests.e2e.cluster import accounts
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.control_plane import ADMINISTRATORS, ControlPlane
from tests.e2e.common.report import Report, say
from tests.e2e.kubelet.waiting import until
from tests.static_credentials import StaticCredentials

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.api_contract.common import Check

_FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"


class Server:
    """A kube-apiserver as the checks use it; its administrator's requests are made in other threads."""

    short = ApiLimits(watch=(5.0, 5.0))

    def __init__(self, control_plane: ControlPlane) -> None:
        """Read the version of the running server."""
        self._control_plane = control_plane
        self._authority = control_plane.authority.root.certificate.read_bytes()
        self._administrator = control_plane.authority.issue("checks", "checks", groups=[ADMINISTRATORS])
        version = control_plane.api.get("/version")
        self.minor = int(version["minor"].rstrip("+"))
        self.version = version["gitVersion"]

    def client(self, limits: ApiLimits = DEFAULT_LIMITS, token: str = "") -> contextlib.aclosing[ApiClient]:
        """Return a client, which the context closes."""
        context = tls_context(self._authority)
        if not token:
            context.load_cert_chain(*map(str, self._administrator))
        credentials = StaticCredentials(self._control_plane.server, token, context)
        return contextlib.aclosing(ApiClient(credentials, limits=limits))

    async def token(self, name: str, rules: Iterable[tuple[str, str]]) -> str:
        """Create a service account, its role and a token."""
        return await asyncio.to_thread(self._token, name, list(rules))

    async def too_old(self) -> str:
        """Return a version from before the start of the watch cache."""
        return "1"

    async def throttled(self) -> str:
        """Create a service account whose priority level runs no request."""
        return await asyncio.to_thread(self._throttled)

    async def restart(self) -> None:
        """Kill and start kube-apiserver."""
        await asyncio.to_thread(self._restart)

    def _restart(self) -> None:
        self._control_plane.apiserver.end(signal.SIGKILL)
        self._control_plane.start_api_server()

    def _throttled(self) -> str:
        api, name = self._control_plane.api, "throttled"
        token = self._token(name, [("list", "resourceslices")])
        # One request waits, and the others are refused.
        response = {"type": "Queue", "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 1}}
        limited = {"nominalConcurrencyShares": 0, "lendablePercent": 0, "limitResponse": response}
        level = {"metadata": {"name": name}, "spec": {"type": "Limited", "limited": limited}}
        api.create(f"{_FLOW}/prioritylevelconfigurations", level)
        account = {"kind": "ServiceAccount", "serviceAccount": {"namespace": "default", "name": name}}
        rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
        spec = {
            "priorityLevelConfiguration": {"name": name},
            "matchingPrecedence": 2,
            "rules": [{"subjects": [account], "resourceRules": [rule]}],
        }
        api.create(f"{_FLOW}/flowschemas", {"metadata": {"name": name}, "spec": spec})
        return token

    def _token(self, name: str, rules: list[tuple[str, str]]) -> str:
        granted = [("" if resource == "nodes" else "resource.k8s.io", resource, verb) for verb, resource in rules]
        return accounts.token(self._control_plane.api, name, granted)


def _run(check: Check, server: Server) -> None:
    asyncio.run(check.run(server))


def main(work: Path, _cgroups: str, programs: Path, only: str) -> int:
    """Run the checks whose name or title contains ``only``, and return the exit code."""
    report = Report()
    control_plane = ControlPlane(programs, work / "control-plane", gates=())
    started = time.monotonic()
    if not report.run("etcd and kube-apiserver start", control_plane.start_api_server):
        for name, tail in control_plane.tails():
            say(f"# end of the log of {name}:\n{tail}")
        return report.end()
    until(lambda: control_plane.api.find(f"{CORE}/namespaces/default"), "the namespace default exists")
    # The cache of a new API server has the history since its start, which must not be that of the data.
    control_plane.apiserver.end(seconds=60)
    control_plane.start_api_server()
    server = Server(control_plane)
    say(f"# kube-apiserver {server.version}, after {time.monotonic() - started:.0f} s")
    for check in CHECKS:
        if only in f"{check.run.__name__} {check.title}":
            report.run(f"[1.{server.minor}] {check.title}", partial(_run, check, server))
    world = policies.prepare(control_plane)
    claims.prepare(world)
    for title, run in (*policies.CHECKS, *claims.CHECKS):
        if only in f"{run.__name__} {title}":
            report.run(f"[1.{server.minor}] {title}", partial(run, world))
    return report.end()
