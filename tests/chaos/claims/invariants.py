"""What must hold after each step, seen from outside the driver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.chaos.claims.world import DRIVER, World

if TYPE_CHECKING:
    from collections.abc import Iterator


def violations(world: World) -> list[str]:
    """Return what does not hold."""
    return [
        *_driver(world),
        *_slices(world),
        *_pods(world),
        *_files(world),
    ]


def _driver(world: World) -> Iterator[str]:
    if world.process is None or world.process.returncode is not None:
        yield "the driver's process has ended"
    if not world.kubelet.running or not world.kubelet.connected(DRIVER):
        yield "the kubelet is not connected to the driver"
    sockets = sorted(path.name for path in (world.directory / "plugins_registry").iterdir())
    if len(sockets) != 1:
        yield f"there is not one socket, but {sockets}"


def _slices(world: World) -> Iterator[str]:
    if (published := world.published()) != world.devices:
        yield f"published devices differ from those that exist: {sorted(published ^ world.devices)}"


def _pods(world: World) -> Iterator[str]:
    held: dict[str, str] = {}
    for name, pod in world.pods.items():
        claim = pod.claims[0]
        spec = world.specs.get(claim.uid)
        # A kubelet that has restarted prepares a claim again only for a new sandbox.
        if claim.uid not in world.kubelet.known_claims:
            yield f"the claim of {name} is not prepared"
        if spec is None:
            yield f"the claim of {name} has no CDI spec"
            continue
        for path in _device_paths(spec.read_text()):
            if path in held:
                yield f"{held[path]} and {name} both have {path}"
            held[path] = name
        expected = [device for device, owner in world.owners.items() if owner == name]
        if not any(path.endswith(f"/{device}") for device in expected for path in held if held[path] == name):
            yield f"{name} does not have its device {expected}"


def _device_paths(text: str) -> list[str]:
    try:
        spec: Any = json.loads(text)
    except ValueError:
        return []
    edits = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]
    return [node["hostPath"] for each in edits for node in each.get("deviceNodes", ())]


def _files(world: World) -> Iterator[str]:
    claims = {pod.claims[0].uid for pod in world.pods.values()}
    if world.specs.keys() != claims:
        yield f"CDI specs differ from the claims of pods: {sorted(world.specs.keys() ^ claims)}"
    if rest := [path.name for path in (world.directory / "cdi").glob(".*")]:
        yield f"temporary files are left: {rest}"
