"""Checks: the policy of deploy/dra for claims refuses parameters that the driver refuses, and touches no others."""

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


def prepare(world: World) -> None:
    """Wait until the policy is enforced."""
    until(lambda: _errors(world, _entry({"kind": ""})), "the policy for claims is enforced", seconds=ACTIVE)


def own_parameters(world: World) -> None:
    for good in _GOOD:
        assert not _errors(world, _entry(good)), good
        assert not _driver_refuses(good), good
    # The API admits 32 entries of 10 KiB: a policy must not cost more for them than an API server allows.
    largest = _entry({"devices": [f"/dev/{number:0>99}" for number in range(64)], "environment": {"A": 2800 * "x"}})
    assert not _errors(world, *32 * [largest])
    for bad, message in _BAD:
        errors = _errors(world, *31 * [largest], _entry(bad))
        assert [message in error for error in errors] == [True, True], f"{bad}: {errors}"
        assert _driver_refuses(bad), bad


def foreign_parameters(world: World) -> None:
    foreign = _entry({"kind": "Anything", "device": 7}, "gpu.example.com")
    assert not _errors(world, foreign)
    assert not _errors(world, foreign, _entry({}))


CHECKS: Final = (
    ("A claim's parameters are admitted up to each limit; beyond it, the error says what is allowed.", own_parameters),
    ("A claim's parameters for other drivers are not touched.", foreign_parameters),
)
