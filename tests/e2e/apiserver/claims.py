"""Checks: the policy of deploy/dra/claims.yaml refuses parameters that the driver refuses, and touches no others."""

from __future__ import annotations

from typing import Any, Final

import yaml

from aosp_plugin.backend.parameters import API_VERSION, KIND, PARAMETER_KEYS, effective_parameters
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.errors import InvalidRequestError
from tests.e2e.apiserver.policies import ACTIVE, CLAIMS, DRIVER, RESOURCE, World
from tests.e2e.cluster.api import ApiError
from tests.e2e.kubelet.waiting import until

_TEMPLATES: Final = f"{RESOURCE}/namespaces/default/resourceclaimtemplates"
_HEAD: Final = {"apiVersion": API_VERSION, "kind": KIND}
_LONGEST: Final = "/dev/" + 250 * "x"

_GOOD: Final[tuple[dict[str, Any], ...]] = (
    {},
    *({name: yaml.safe_load(key.example)} for name, key in PARAMETER_KEYS.items() if name != "allowedDevices"),
    {"containerPaths": [f"/dev/{number}" for number in range(64)]},
    {"containerPaths": [_LONGEST, "/dev/...", "/dev/.a"]},
    {"environment": {f"A{number}": "" for number in range(64)}},
    {"environment": {128 * "A": 4096 * "x", "_0": "true"}},
)
_BAD: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"apiVersion": "phone.aosp.io/v1"}, "allowed: apiVersion: phone.aosp.io/v1alpha1"),
    ({"kind": None}, "kind: PhoneParameters"),
    ({"device": [], "env": {}}, "unknown keys: device, env; the keys of a claim are apiVersion, kind, containerPaths"),
    ({"allowedDevices": ["/dev/fuse"]}, "unknown keys: allowedDevices"),
    *(
        ({"containerPaths": paths}, "a list of up to 64 absolute paths")
        for paths in (
            "/dev/a",
            None,
            [7],
            [f"/dev/{number}" for number in range(65)],
            *([path] for path in ("", "binder", "/dev/", "/dev//a", "/dev/./a", "/dev/..", f"{_LONGEST}x")),
        )
    ),
    ({"devices": ["dev/fuse"]}, "a list of up to 64 absolute paths"),
    *(
        ({"environment": variables}, "a mapping of up to 64 names")
        for variables in (
            ["A=1"],
            {"PORT": 80},
            {"A-B": ""},
            {"1A": ""},
            {129 * "A": ""},
            {"A": 4097 * "x"},
            {f"A{number}": "" for number in range(65)},
        )
    ),
)


def _entry(parameters: dict[str, Any], driver: str = DRIVER, **requests: list[str]) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": _HEAD | parameters}} | requests


def _create(world: World, path: str, *config: dict[str, Any]) -> None:
    """Ask the API server for a claim or a template with this configuration; nothing is stored."""
    requests = [{"name": name, "exactly": {"deviceClassName": DRIVER}} for name in ("first", "second")]
    spec: dict[str, Any] = {"devices": {"requests": requests, "config": config}}
    body = {"metadata": {"generateName": "claim-"}, "spec": spec if path == CLAIMS else {"spec": spec}}
    world.api.create(path, body, dryRun="All")


def _admitted(world: World, *config: dict[str, Any]) -> None:
    for path in (CLAIMS, _TEMPLATES):
        _create(world, path, *config)


def _refused(world: World, *config: dict[str, Any]) -> str:
    """Return the errors of claim and template; "" if one is admitted."""
    errors = []
    for path in (CLAIMS, _TEMPLATES):
        try:
            _create(world, path, *config)
        except ApiError as error:
            errors.append(str(error))
    return "\n".join(errors) if len(errors) == 2 else ""


def _driver_refuses(parameters: dict[str, Any]) -> bool:
    of_class = _HEAD | {"allowedDevices": ["/dev/snd/*"]}
    try:
        effective_parameters([ClaimParameters("class", of_class), ClaimParameters("claim", _HEAD | parameters)])
    except InvalidRequestError:
        return True
    return False


def prepare(world: World) -> None:
    """Wait until the policy is enforced."""
    until(lambda: _refused(world, _entry({"kind": ""})), "the policy for claims is enforced", seconds=ACTIVE)


def own_parameters(world: World) -> None:
    for good in _GOOD:
        _admitted(world, _entry(good))
        assert not _driver_refuses(good), good
    for bad, message in _BAD:
        text = _refused(world, _entry({}), _entry(bad))
        assert message in text, f"{bad}: {text}"
        assert _driver_refuses(bad), bad


def foreign_parameters(world: World) -> None:
    bad = _entry({"kind": "Anything", "device": 7}, "gpu.example.com")
    _admitted(world, bad)
    _admitted(world, bad, _entry({}))
    _admitted(world)


def largest(world: World) -> None:
    entry = _entry({"devices": [f"/dev/{number:0>99}" for number in range(64)], "environment": {"A": 2800 * "x"}})
    _admitted(world, *31 * [entry], _entry({}))
    assert "unknown keys: last" in _refused(world, *31 * [entry], _entry({"last": 1}))


CHECKS: Final = (
    (
        "A claim's parameters are admitted up to each limit; beyond it the error says what the driver would.",
        own_parameters,
    ),
    ("A claim's parameters are checked up to the largest claim that the API admits: the cost has room.", largest),
    ("A claim's parameters for other drivers are not touched.", foreign_parameters),
)
