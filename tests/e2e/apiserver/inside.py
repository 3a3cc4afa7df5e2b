"""Runs in the sandbox: start etcd and kube-apiserver, and run the checks."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aosp_plugin.framework.apiserver.client import DEFAULT_LIMITS, ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.credentials import Credentials, tls_context
from tests.api_contract import publishing
from tests.api_contract.checks import CHECKS
from tests.e2e.apiserver import policies
from tests.e2e.cluster import sandbox
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.control_plane import ADMINISTRATORS, ETCD, GATES, GATES_BY_DEFAULT, ControlPlane
from tests.e2e.common.report import Report, say
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.api_contract.common import Check

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"
_GROUPS = {"nodes": ""}

POLICIES: Final = "The policies for the Node admit what the plugin does, and refuse the rest."


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

    def client(self, limits: ApiLimits = DEFAULT_LIMITS, token: str = "") -> ApiClient:
        """Return a client."""
        context = tls_context(self._authority)
        if not token:
            context.load_cert_chain(*map(str, self._administrator))
        return ApiClient(Credentials(self._control_plane.server, token, context), limits=limits)

    async def token(self, name: str, rules: Iterable[tuple[str, str]]) -> str:
        """Create a service account, its role and a token."""
        return await asyncio.to_thread(self._token, name, list(rules))

    async def too_old(self) -> str:
        """Return a version from before the start of the watch cache."""
        return "1"

    async def compact(self) -> None:
        """Compact etcd."""
        await asyncio.to_thread(self._compact)

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
        api = self._control_plane.api
        api.create(f"{CORE}/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
        role: dict[str, Any] = {
            "metadata": {"name": name},
            "rules": [
                {"apiGroups": [_GROUPS.get(resource, "resource.k8s.io")], "resources": [resource], "verbs": [verb]}
                for verb, resource in rules
            ],
        }
        api.create(f"{_RBAC}/clusterroles", role)
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": name}],
        }
        api.create(f"{_RBAC}/clusterrolebindings", binding)
        answer = api.create(f"{CORE}/namespaces/default/serviceaccounts/{name}/token", {"spec": {}})
        return str(answer["status"]["token"])

    def _compact(self) -> None:
        revision = _etcd("range", {"key": "AA=="})["header"]["revision"]
        _etcd("compaction", {"revision": revision, "physical": True})


def _etcd(call: str, body: dict[str, Any]) -> dict[str, Any]:
    """Call etcd by its JSON gateway."""
    name = {"range": "range", "compaction": "compaction"}[call]
    with urllib.request.urlopen(f"{ETCD}/v3/kv/{name}", json.dumps(body).encode(), timeout=10) as answer:  # noqa: S310
        result: dict[str, Any] = json.load(answer)
        return result


def _run(check: Check, server: Server) -> None:
    asyncio.run(check.run(server))


def _run_with_gates(control_plane: ControlPlane, only: str, report: Report) -> None:
    """Run the checks of taints again, in a version in which their gate is off by default."""
    checks = [check for check in publishing.check.all if check.run.__name__ == "unhealthy"]
    checks = [check for check in checks if only in f"{check.run.__name__} {check.title}"]
    if not checks:
        return
    control_plane.stop()
    control_plane.enable(GATES)
    control_plane.start_api_server()
    server = Server(control_plane)
    for check in checks:
        report.run(f"[1.{server.minor}, gates enabled] {check.title}", partial(_run, check, server))


def main() -> int:
    """Run the checks, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--cgroups", default="")
    options = parser.parse_args()
    sandbox.set_up()
    report = Report()
    control_plane = ControlPlane(options.programs, options.work / "control-plane", gates=())
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
        if options.only in f"{check.run.__name__} {check.title}":
            report.run(f"[1.{server.minor}] {check.title}", partial(_run, check, server))
    if options.only in POLICIES:
        report.run(f"[1.{server.minor}] {POLICIES}", partial(policies.limited, server, control_plane.api))
    if server.minor < GATES_BY_DEFAULT:
        _run_with_gates(control_plane, options.only, report)
    return report.end()


if __name__ == "__main__":
    raise SystemExit(main())
