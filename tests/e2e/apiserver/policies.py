"""Checks: the policies of deploy/examples/node limit a plugin's token to its own Node, in each version."""

from __future__ import annotations

import asyncio
import contextlib
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import yaml

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.protocol import ApiError
from tests.e2e.cluster.api import CORE
from tests.e2e.kubelet.parts import PROJECT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aosp_plugin.framework.apiserver.client import ApiClient
    from tests.e2e.apiserver.inside import Server
    from tests.e2e.cluster.api import Api

ACCOUNT: Final = "aosp-device-plugin"
NAMESPACE: Final = "kube-system"
OWN: Final = "policy-node"
FOREIGN: Final = "policy-foreign-node"
EVENTS: Final = protocol.events("default")
KEY: Final = "aosp.io/starting"
ACTIVE: Final = 120.0
"""Seconds within which the API server enforces new policies and roles."""

_COLLECTIONS: Final = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


def prepare(api: Api) -> str:
    """Create the objects of deploy/examples/node and two Nodes; return the token of a pod on the first one."""
    with contextlib.suppress(OSError):  # the API server creates it itself soon after its start
        api.create(f"{CORE}/namespaces", {"metadata": {"name": NAMESPACE}})
    accounts = f"{CORE}/namespaces/{NAMESPACE}/serviceaccounts"
    api.create(accounts, {"metadata": {"name": ACCOUNT}})
    text = (PROJECT / "deploy" / "examples" / "node" / "rights.yaml").read_text()
    for manifest in yaml.safe_load_all(text):
        api.create(_COLLECTIONS[manifest["kind"]], manifest)
    for name in (OWN, FOREIGN):
        taints = [{"key": KEY, "effect": "NoSchedule"}, {"key": "example.com/other", "effect": "NoSchedule"}]
        api.create(f"{CORE}/nodes", {"metadata": {"name": name}, "spec": {"taints": taints}})
    container = {"name": "plugin", "image": "none"}
    pod = {
        "metadata": {"name": "plugin"},
        "spec": {"nodeName": OWN, "serviceAccountName": ACCOUNT, "containers": [container]},
    }
    uid = api.create(f"{CORE}/namespaces/{NAMESPACE}/pods", pod)["metadata"]["uid"]
    bound = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "plugin", "uid": uid}}
    return str(api.create(f"{accounts}/{ACCOUNT}/token", {"spec": bound})["status"]["token"])


def limited(server: Server, api: Api) -> None:
    """The policies refuse what is not the plugin's, and admit what is."""
    asyncio.run(_limited(server, prepare(api)))


@contextlib.asynccontextmanager
async def _client(server: Server, token: str) -> AsyncIterator[ApiClient]:
    """Yield a client of the plugin, when the policies are enforced."""
    async with server.client(token=token) as client:
        await _enforced(lambda: client.patch(_node(OWN), _label()))
        await _enforced(lambda: client.create(EVENTS, _event(FOREIGN)))
        yield client


async def _enforced(request: Callable[[], Awaitable[object]]) -> None:
    """Repeat a request until a policy refuses it. Raises AssertionError if none does in time."""
    end = asyncio.get_running_loop().time() + ACTIVE
    while "ValidatingAdmissionPolicy" not in (message := await _refused(request())):
        assert asyncio.get_running_loop().time() < end, message
        await asyncio.sleep(0.2)


async def _limited(server: Server, token: str) -> None:
    async with _client(server, token) as client:
        taints = (await client.get(_node(OWN)))["spec"]["taints"]
        places = {taint["key"]: place for place, taint in enumerate(taints)}
        denied = {
            "another Node": client.patch(_node(FOREIGN), _removal(places[KEY])),
            "another taint": client.patch(_node(OWN), _removal(places["example.com/other"])),
            "all taints": client.patch(_node(OWN), [{"op": "remove", "path": "/spec/taints"}]),
            "a taint and more": client.patch(_node(OWN), [*_removal(places[KEY]), _unschedulable()]),
            "an Event of a pod": client.create(EVENTS, _event(OWN, kind="Pod", namespace="default")),
            "an Event of the kubelet": client.create(EVENTS, _event(OWN, component="kubelet")),
        }
        for what, request in denied.items():
            assert "ValidatingAdmissionPolicy" in await _refused(request), what
        await client.create(EVENTS, _event(OWN))
        event = protocol.object_path(EVENTS, OWN)
        await client.patch(event, {"count": 2})
        assert "ValidatingAdmissionPolicy" in await _refused(client.patch(event, {"source": {"component": "kubelet"}}))
        left = (await client.patch(_node(OWN), _removal(places[KEY])))["spec"]["taints"]
        assert left == [taint for taint in taints if taint["key"] != KEY], left


async def _refused(request: Awaitable[object]) -> str:
    """Return the message of a request that must be forbidden, or of one that came too early."""
    try:
        await request
    except ApiError as error:
        return error.message if error.status == HTTPStatus.FORBIDDEN else str(error)
    return "succeeded"


def _node(name: str) -> str:
    return protocol.object_path(protocol.NODES, name)


def _label() -> dict[str, Any]:
    """Return a patch that is a change each time: what was admitted before the policy is no change afterwards."""
    return {"metadata": {"labels": {"example.com/forged": f"{time.monotonic_ns()}"}}}


def _removal(place: int) -> list[dict[str, Any]]:
    return [{"op": "remove", "path": f"/spec/taints/{place}"}]


def _unschedulable() -> dict[str, Any]:
    return {"op": "add", "path": "/spec/unschedulable", "value": True}


def _event(name: str, *, kind: str = "Node", component: str = ACCOUNT, namespace: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": kind, "name": name, "uid": name, "namespace": namespace},
        "source": {"component": component},
        "reason": "Forged",
        "message": "forged",
        "type": "Normal",
        "count": 1,
    }
