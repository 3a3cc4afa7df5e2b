"""kube-apiserver in two versions, as the tests of the contract and those of policies use it."""

import contextlib
import signal
from collections.abc import Iterable, Iterator

import pytest

from aosp_plugin.framework.apiserver.client import DEFAULT_LIMITS, ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.credentials import tls_context
from tests.api_contract.common import client
from tests.e2e.apiserver.servers import Servers
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.control_plane import ADMINISTRATORS, ControlPlane
from tests.e2e.common import sandboxed
from tests.e2e.common.report import say
from tests.e2e.common.waiting import until
from tests.static_credentials import StaticCredentials

__all__ = ["client"]

_FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Run these tests in their sandbox only."""
    sandboxed.require(config, "make test-apiserver PYTEST='-k NAME'")


@pytest.fixture(scope="session", params=[pytest.param("oldest", marks=pytest.mark.core), "newest"])
def control_plane(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """Start etcd and kube-apiserver, of one version after the other."""
    servers: Servers = pytestconfig.stash[sandboxed.GIVEN]
    plane = servers.plane = ControlPlane(servers.programs[request.param], servers.work / request.param, gates=())
    plane.start_api_server()
    until(lambda: plane.api.find(f"{CORE}/namespaces/default"), "the namespace default exists")
    # The cache of a new API server has the history since its start, which must not be that of the data.
    plane.apiserver.end(seconds=60)
    plane.start_api_server()
    say(f"# version kube-apiserver: {plane.api.get('/version')['gitVersion']}")
    yield plane
    plane.stop()


class Server:
    """A kube-apiserver as the tests of the contract use it; its administrator's requests block the event loop."""

    short = ApiLimits(watch=(5.0, 5.0))

    def __init__(self, control_plane: ControlPlane) -> None:
        """Issue the administrator's certificate."""
        self._control_plane = control_plane
        self._authority = control_plane.authority.root.certificate.read_bytes()
        self._administrator = control_plane.authority.issue("tests", "tests", groups=[ADMINISTRATORS])
        self.minor = control_plane.minor

    def client(self, limits: ApiLimits = DEFAULT_LIMITS, token: str = "") -> contextlib.aclosing[ApiClient]:
        """Return a client, which the context closes."""
        context = tls_context(self._authority)
        if not token:
            context.load_cert_chain(*map(str, self._administrator))
        credentials = StaticCredentials(self._control_plane.server, token, context)
        return contextlib.aclosing(ApiClient(credentials, limits=limits))

    async def token(self, name: str, rules: Iterable[tuple[str, str]]) -> str:
        """Create a service account, its role and a token."""
        api, rbac = self._control_plane.api, "rbac.authorization.k8s.io"
        accounts = f"{CORE}/namespaces/default/serviceaccounts"
        api.create(accounts, {"metadata": {"name": name}})
        granted = [
            {"apiGroups": ["" if resource == "nodes" else "resource.k8s.io"], "resources": [resource], "verbs": [verb]}
            for verb, resource in rules
        ]
        api.create(f"/apis/{rbac}/v1/clusterroles", {"metadata": {"name": name}, "rules": granted})
        subject = {"kind": "ServiceAccount", "namespace": "default", "name": name}
        reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        api.create(f"/apis/{rbac}/v1/clusterrolebindings", binding)
        answer = api.create(f"{accounts}/{name}/token", {"spec": {"expirationSeconds": 86400}})
        return str(answer["status"]["token"])

    async def too_old(self) -> str:
        """Return a version from before the start of the watch cache."""
        return "1"

    async def throttled(self) -> str:
        """Create a service account whose priority level runs no request."""
        api, name = self._control_plane.api, "throttled"
        token = await self.token(name, [("list", "resourceslices")])
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

    async def restart(self) -> None:
        """Kill and start kube-apiserver."""
        self._control_plane.apiserver.end(signal.SIGKILL)
        self._control_plane.start_api_server()


@pytest.fixture(scope="session")
def server(control_plane: ControlPlane) -> Server:
    """Return the running server."""
    return Server(control_plane)
