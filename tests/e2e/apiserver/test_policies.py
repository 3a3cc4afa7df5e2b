"""Roles and policies of deploy/dra and deploy/examples/node: a plugin's token is limited to its own node.

The policy for claims refuses parameters that the driver refuses, and touches no others.
"""

import http.client
import time
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import yaml

from aosp_plugin.backend.parameters import API_VERSION, KIND, PARAMETER_KEYS, effective_parameters
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.dra.slices import pool_name, slice_name
from aosp_plugin.framework.errors import InvalidRequestError
from tests.e2e.cluster.api import CORE, Api, ApiError
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.common.processes import run
from tests.e2e.common.waiting import until
from tests.e2e.deploy.parts import PROJECT

Body = dict[str, Any] | list[dict[str, Any]] | None

ACCOUNT: Final = "aosp-device-plugin"
ACCOUNTS: Final = f"{CORE}/namespaces/kube-system/serviceaccounts"
OWN: Final = "policy-node"
FOREIGN: Final = "policy-foreign-node"
LONG: Final = ".".join(["long" * 15] * 3)
"""The name of a Node that is too long for the names of slices."""
DRIVER: Final = "phone.aosp.io"
NODES: Final = f"{CORE}/nodes"
EVENTS: Final = f"{CORE}/namespaces/default/events"
RESOURCE: Final = "/apis/resource.k8s.io/v1"
SLICES: Final = f"{RESOURCE}/resourceslices"
CLAIMS: Final = f"{RESOURCE}/namespaces/default/resourceclaims"
KEY: Final = "aosp.io/starting"
OTHER: Final = "example.com/other"
POLICY: Final = "ValidatingAdmissionPolicy"
ACTIVE: Final = 120.0
"""Seconds within which the API server enforces new policies and roles."""

_MANIFESTS: Final = ("dra/manifests.yaml", "examples/node/manifests.yaml")
_RIGHTS: Final = {
    "nodes": {"get", "patch"},
    "events": {"create"},
    "resourceslices": {"get", "list", "watch", "create", "update", "delete"},
    "resourceclaims": {"get"},
}
_EVERYONE_S: Final = frozenset(
    {"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "clustertrustbundles"}
)
"""What all users may create, and what all service accounts may read from Kubernetes 1.37 on."""

_TEMPLATES: Final = f"{RESOURCE}/namespaces/default/resourceclaimtemplates"
_HEAD: Final = {"apiVersion": API_VERSION, "kind": KIND}
_LONGEST: Final = "/dev/" + 250 * "x"
_PATHS: Final = "a list of up to 64 absolute paths"
_VARIABLES: Final = "a mapping of up to 64 names"

_GOOD: Final[tuple[dict[str, Any], ...]] = (
    *({name: yaml.safe_load(key.example)} for name, key in PARAMETER_KEYS.items() if name != "allowedDevices"),
    {"containerPaths": [_LONGEST, "/dev/...", "/dev/.a", *(f"/dev/{number}" for number in range(61))]},
    {"environment": {128 * "A": 4096 * "x", **{f"_{number}": "" for number in range(63)}}},
)
_BAD: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"apiVersion": "phone.aosp.io/v1"}, "allowed: apiVersion: phone.aosp.io/v1alpha1"),
    ({"kind": None}, "kind: PhoneParameters"),
    ({"env": {}}, "unknown keys: env; the keys of a claim are apiVersion, kind, containerPaths"),
    ({"allowedDevices": ["/dev/fuse"]}, "unknown keys: allowedDevices"),
    ({"devices": ["dev/fuse"]}, _PATHS),
    ({"containerPaths": [f"/dev/{number}" for number in range(65)]}, _PATHS),
    *(({"containerPaths": paths}, _PATHS) for paths in ("/dev/a", None, [7], ["/dev//a"], ["/a/.."], [f"{_LONGEST}x"])),
    ({"environment": {f"A{number}": "" for number in range(65)}}, _VARIABLES),
    *(({"environment": variables}, _VARIABLES) for variables in (["A=1"], {"A": 80}, {"1A": ""}, {129 * "A": ""})),
    ({"environment": {"A": 4097 * "x"}}, _VARIABLES),
)


def denied(api: Api, method: str, path: str, body: Body = None) -> str:
    """Return the message of a request that must be forbidden."""
    try:
        api.text(method, path, body)
    except ApiError as error:
        if error.status != http.client.FORBIDDEN:
            raise
        return str(error)
    raise AssertionError(f"{method} {path} succeeded: {body}")


def event(node: str, *, component: str = ACCOUNT, reporting: str = ACCOUNT, **involved: str) -> dict[str, Any]:
    """Return an Event of a Node, or of what ``involved`` says."""
    return {
        "metadata": {"name": f"forged-{time.monotonic_ns()}", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node} | involved,
        "source": {"component": component} if component else {},
        "reportingComponent": reporting,
        "reason": "Forged",
        "message": "forged",
        "type": "Normal",
        "count": 1,
    }


def resource_slice(node: str, driver: str = DRIVER, *, name: str = "", pool: str = "") -> dict[str, Any]:
    """Return a slice with one device, of a node or of all nodes; ``name`` and ``pool`` instead of its own names."""
    where: dict[str, Any] = {"nodeName": node} if node else {"allNodes": True}
    block = f"{time.monotonic_ns()}"
    of_pool = {"name": pool or pool_name(node or "all", block), "generation": 1, "resourceSliceCount": 1}
    spec = where | {"driver": driver, "pool": of_pool, "devices": [{"name": "forged"}]}
    return {"metadata": {"name": name or slice_name(driver, node or "all", block)}, "spec": spec}


def removal(place: int | str) -> list[dict[str, Any]]:
    """Return the JSON patch that removes a taint by its place."""
    return [{"op": "remove", "path": f"/spec/taints/{place}".rstrip("/")}]


@dataclass
class World:
    """The administrator's requests, those of a plugin's pod on the Node OWN, and those of a token without a node."""

    api: Api
    own: Api
    without_node: Api
    long: Api
    """A plugin's pod on the Node LONG."""
    places: dict[str, int] = field(default_factory=dict)
    """The place of each taint of the Nodes."""


@pytest.fixture(scope="session")
def world(control_plane: ControlPlane) -> World:
    """Create roles, policies and two Nodes, and wait until all of it is enforced."""
    plane, api = control_plane, control_plane.api
    until(lambda: api.find(f"{CORE}/namespaces/kube-system"), "the namespace kube-system exists")
    kubectl = (str(plane.programs / "kubectl"), f"--kubeconfig={plane.kubeconfig}")
    run(*kubectl, "apply", *(f"--filename={PROJECT}/deploy/{name}" for name in _MANIFESTS))
    taints = [{"key": key, "effect": "NoSchedule"} for key in (KEY, OTHER)]
    for name in (OWN, FOREIGN, LONG):
        api.create(NODES, {"metadata": {"name": name}, "spec": {"taints": taints}})
    own, long = (plane.as_token(_token_of_pod(api, f"plugin{i}", node)) for i, node in enumerate((OWN, LONG)))
    world = World(api, own, plane.as_token(_token(api)), long)
    world.places = {taint["key"]: place for place, taint in enumerate(api.get(f"{NODES}/{OWN}")["spec"]["taints"])}
    # A patch that is a change each time: what was admitted before the policy is no change afterwards.
    for request in (
        lambda: denied(world.own, "PATCH", f"{NODES}/{OWN}", {"metadata": {"labels": {"a": f"{time.monotonic_ns()}"}}}),
        lambda: denied(world.own, "POST", EVENTS, event(FOREIGN)),
        lambda: denied(world.own, "POST", SLICES, resource_slice(FOREIGN)),
    ):
        until(lambda request=request: POLICY in request(), "the policies are enforced", seconds=ACTIVE)  # type: ignore[misc]
    return world


def _token_of_pod(api: Api, name: str, node: str) -> str:
    spec = {"nodeName": node, "serviceAccountName": ACCOUNT, "containers": [{"name": "plugin", "image": "none"}]}
    pod = api.create(f"{CORE}/namespaces/kube-system/pods", {"metadata": {"name": name}, "spec": spec})
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}
    return _token(api, boundObjectRef=bound)


def _token(api: Api, **spec: Any) -> str:
    return str(api.create(f"{ACCOUNTS}/{ACCOUNT}/token", {"spec": spec})["status"]["token"])


def test_rights(world: World) -> None:
    """A plugin may do what it uses, and nothing else."""
    review = {"spec": {"namespace": "default"}}
    answer = world.own.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    found: dict[str, set[str]] = {}
    for rule in answer["status"]["resourceRules"]:
        for name in {*rule["resources"]} - _EVERYONE_S:
            found.setdefault(name, set()).update(rule["verbs"])
    assert found == _RIGHTS, found
    for path in (f"{CORE}/secrets", f"{CORE}/configmaps", f"{CORE}/pods", NODES, EVENTS, CLAIMS):
        denied(world.own, "GET", path)
    world.api.create(CLAIMS, {"metadata": {"name": "seen"}, "spec": {"devices": {"requests": []}}})
    assert world.own.get(f"{CLAIMS}/seen")
    denied(world.own, "DELETE", f"{CLAIMS}/seen")
    assert world.own.get(f"{NODES}/{FOREIGN}")


def test_other_node(world: World) -> None:
    """It cannot change or delete another Node."""
    message = denied(world.own, "PATCH", f"{NODES}/{FOREIGN}", removal(world.places[KEY]))
    assert f"may not change the Node {FOREIGN}" in message, message
    denied(world.own, "DELETE", f"{NODES}/{FOREIGN}")


def test_other_taint(world: World) -> None:
    """It can remove the startup taint of its Node, and cannot add, change or remove another taint."""
    path, place = f"{NODES}/{OWN}", world.places[OTHER]
    for patch in (
        removal(place),
        removal(""),
        [*removal(world.places[KEY]), {"op": "add", "path": "/spec/unschedulable", "value": True}],
        [{"op": "replace", "path": f"/spec/taints/{place}/effect", "value": "PreferNoSchedule"}],
        [{"op": "add", "path": "/spec/taints/-", "value": {"key": "a", "effect": "NoExecute"}}],
    ):
        assert POLICY in denied(world.own, "PATCH", path, patch), patch
    world.own.text("PATCH", path, removal(world.places[KEY]))
    assert KEY not in {taint["key"] for taint in world.api.get(path)["spec"]["taints"]}


def test_other_fields(world: World) -> None:
    """It cannot change labels, annotations, other fields and the status of its Node."""
    patches: tuple[dict[str, Any], ...] = (
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["a.io/b"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"podCIDR": "192.0.2.0/24", "podCIDRs": ["192.0.2.0/24"]}},
        {"spec": {"providerID": "a://b"}},
    )
    for patch in patches:
        message = denied(world.own, "PATCH", f"{NODES}/{OWN}", patch)
        assert "may change nothing of a Node but its taints" in message, message
    status = {"status": {"capacity": {"example.com/gpu": "8"}}}
    assert "nodes/status" in denied(world.own, "PATCH", f"{NODES}/{OWN}/status", status)


def test_foreign_events(world: World) -> None:
    """It can create Events of its Node, and none of other objects or under another name; it can change none."""
    made = world.own.create(EVENTS, event(OWN))
    denied(world.own, "PATCH", f"{EVENTS}/{made['metadata']['name']}", {"count": 2})
    pod = event(OWN, kind="Pod", namespace="default")
    under_another_name = [event(OWN, **{part: name}) for part in ("component", "reporting") for name in ("kubelet", "")]
    for body in (event(FOREIGN), pod, *under_another_name):
        assert POLICY in denied(world.own, "POST", EVENTS, body), body


def test_other_slices(world: World) -> None:
    """It can publish slices of its Node and its driver, and cannot write or delete any other slice."""
    foreign = world.api.create(SLICES, resource_slice(FOREIGN))
    path = f"{SLICES}/{foreign['metadata']['name']}"
    changed = foreign | {"spec": foreign["spec"] | {"devices": [{"name": "another"}]}}
    assert FOREIGN in denied(world.own, "POST", SLICES, resource_slice(FOREIGN))
    denied(world.own, "POST", SLICES, resource_slice(""))
    denied(world.own, "PUT", path, changed)
    denied(world.own, "DELETE", path)
    denied(world.own, "DELETE", SLICES)
    assert world.api.get(path)["spec"] == foreign["spec"]
    assert "gpu.example.com" in denied(world.own, "POST", SLICES, resource_slice(OWN, "gpu.example.com"))
    own = world.own.create(SLICES, resource_slice(OWN))
    world.own.delete(f"{SLICES}/{own['metadata']['name']}")


def test_other_names(world: World) -> None:
    """It cannot take the names that slices and pools of other nodes have or may get."""
    for node in (FOREIGN, LONG, f"{OWN}-2", f"2-{OWN}"):
        taken = resource_slice(OWN, name=slice_name(DRIVER, node, "00000"))
        assert f"BLOCK-{DRIVER}-{OWN}" in denied(world.own, "POST", SLICES, taken)
        taken = resource_slice(OWN, pool=pool_name(node, "00000"))
        assert f"{OWN}/BLOCK" in denied(world.own, "POST", SLICES, taken)
    for name in ("forged", f"00000-{DRIVER}", f"0-0-{DRIVER}-{OWN}", f"{DRIVER}-{OWN}"):
        denied(world.own, "POST", SLICES, resource_slice(OWN, name=name))
    denied(world.own, "POST", SLICES, resource_slice(OWN, pool=OWN))
    for node in (OWN, f"other{LONG[5:]}"):
        denied(world.long, "POST", SLICES, resource_slice(LONG, name=slice_name(DRIVER, node, "00000")))
        denied(world.long, "POST", SLICES, resource_slice(LONG, pool=pool_name(node, "00000")))
    made = world.long.create(SLICES, resource_slice(LONG))
    world.long.text("PUT", f"{SLICES}/{made['metadata']['name']}", made | {"spec": made["spec"] | {"devices": []}})
    world.long.delete(f"{SLICES}/{made['metadata']['name']}")


def test_token_without_node(world: World) -> None:
    """A token of its service account without a pod can change no Node and no slice."""
    assert "no node name" in denied(world.without_node, "PATCH", f"{NODES}/{FOREIGN}", removal(world.places[KEY]))
    assert "no node name" in denied(world.without_node, "POST", SLICES, resource_slice(OWN))


def _entry(parameters: dict[str, Any], driver: str = DRIVER) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": _HEAD | parameters}}


def _errors(world: World, *config: dict[str, Any]) -> list[str]:
    """Return the API server's errors for a claim and a template with this configuration."""
    spec: dict[str, Any] = {"devices": {"config": config}}
    errors = []
    for path, body in ((CLAIMS, spec), (_TEMPLATES, {"spec": spec})):
        try:
            world.api.create(path, {"metadata": {"generateName": "claim-"}, "spec": body}, dryRun="All")
        except ApiError as error:
            errors.append(str(error))
    return errors


def _driver_refuses(parameters: dict[str, Any]) -> bool:
    of_class = _HEAD | {"allowedDevices": ["/dev/snd/*"]}
    try:
        effective_parameters([ClaimParameters("class", of_class), ClaimParameters("claim", _HEAD | parameters)])
    except InvalidRequestError:
        return True
    return False


@pytest.fixture(scope="session")
def enforced(world: World) -> World:
    """Wait until the policy is enforced."""
    until(lambda: _errors(world, _entry({"kind": ""})), "the policy for claims is enforced", seconds=ACTIVE)
    return world


def test_own_parameters(enforced: World) -> None:
    """A claim's parameters are admitted up to each limit; beyond it, the error says what is allowed."""
    for good in _GOOD:
        assert not _errors(enforced, _entry(good)), good
        assert not _driver_refuses(good), good
    # The API admits 32 entries of 10 KiB: a policy must not cost more for them than an API server allows.
    largest = _entry({"devices": [f"/dev/{number:0>99}" for number in range(64)], "environment": {"A": 2800 * "x"}})
    assert not _errors(enforced, *32 * [largest])
    for bad, message in _BAD:
        errors = _errors(enforced, *31 * [largest], _entry(bad))
        assert [message in error for error in errors] == [True, True], f"{bad}: {errors}"
        assert _driver_refuses(bad), bad


def test_foreign_parameters(enforced: World) -> None:
    """A claim's parameters for other drivers are not touched."""
    foreign = _entry({"kind": "Anything", "device": 7}, "gpu.example.com")
    assert not _errors(enforced, foreign)
    assert not _errors(enforced, foreign, _entry({}))
