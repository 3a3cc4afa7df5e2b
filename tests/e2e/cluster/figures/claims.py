"""Claims that are allocated by their status, without a scheduler and without pods."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.e2e.cluster.figures.recorder import RESOURCE, SLICES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.api import Api

NAMESPACE: Final = "default"
CLAIMS: Final = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
REQUEST: Final = "device"
_THREADS: Final = 8
_NUMBERS: Final = itertools.count(1)


class Claim(NamedTuple):
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


def devices(api: Api, driver: str) -> list[tuple[str, str]]:
    """Return pool and name of each device of a driver's slices."""
    slices = [found for found in api.list(SLICES) if found["spec"]["driver"] == driver]
    return [(found["spec"]["pool"]["name"], device["name"]) for found in slices for device in found["spec"]["devices"]]


def create(api: Api, driver: str, count: int) -> list[Claim]:
    """Create claims that have one of a driver's devices each."""
    free = devices(api, driver)[:count]
    with ThreadPoolExecutor(_THREADS) as executor:
        return list(executor.map(lambda device: _create(api, driver, *device), free))


def remove(api: Api, claims: Sequence[Claim]) -> None:
    """Delete claims."""
    with ThreadPoolExecutor(_THREADS) as executor:
        list(executor.map(lambda claim: api.delete(f"{CLAIMS}/{claim.name}"), claims))


def _create(api: Api, driver: str, pool: str, device: str) -> Claim:
    name = f"claim-{next(_NUMBERS)}"
    request = {"name": REQUEST, "exactly": {"deviceClassName": class_name(driver)}}
    body: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
    uid = api.create(CLAIMS, body)["metadata"]["uid"]
    result = {"request": REQUEST, "driver": driver, "pool": pool, "device": device}
    api.patch(f"{CLAIMS}/{name}/status", {"status": {"allocation": {"devices": {"results": [result]}}}})
    return Claim(NAMESPACE, name, uid)


def class_name(driver: str) -> str:
    """Return the name of the DeviceClass of a driver's devices."""
    return f"class.{driver}"


def create_class(api: Api, driver: str) -> None:
    """Create the DeviceClass of a driver's devices, and a template of claims with the same name."""
    name = class_name(driver)
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    api.create(
        f"{RESOURCE}/deviceclasses",
        {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": [selector]}},
    )
    request = {"name": REQUEST, "exactly": {"deviceClassName": name}}
    api.create(
        f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaimtemplates",
        {
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        },
    )
