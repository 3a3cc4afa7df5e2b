"""Items: Android's own binder software in restricted pods with ResourceClaims, with phones of both kinds.

``claim_cluster`` has the cluster, ``aosp`` says what runs in the pods.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.kernel import aosp, tenants
from tests.e2e.kernel.aosp import APP, SHELL, SYSTEM
from tests.e2e.kernel.containers import RUNTIMES
from tests.e2e.kernel.item import Item, sentence
from tests.e2e.kernel.items_aosp_pods import apart, tests
from tests.e2e.kernel.items_client_pods import FIRST, NEXT, SECOND
from tests.e2e.kernel.tenants import say

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.kernel.claim_cluster import World
    from tests.e2e.kernel.tenants import Kind

_LEFT_OUT: Final = ("deviceNodes", "mounts")
_SHARED: Final = "shared"
_UNRESTRICTED: Final = 'violates PodSecurity "restricted:'


def works(world: World, kind: Kind) -> None:
    """In two restricted pods Android's service managers run as users 1000 and 2000; its tools find only their own."""
    world.clear()  # after an item that failed
    tenants.new_devices(kind)
    world.serve(kind)
    assert _UNRESTRICTED in world.refusal(), f"without a security context: {world.refusal()}"
    first, second = world.place(FIRST, SYSTEM), world.place(SECOND, SHELL)
    claim = first.claim()
    say(f"manifest, with the API server's defaults: {json.dumps(first.manifest['spec'])}")
    say(f"claim {claim['metadata']['name']}: {json.dumps({key: claim[key] for key in ('spec', 'status')})}")
    aosp.works(first, SECOND)
    aosp.works(second, FIRST)


def next_claim(world: World) -> None:
    """The pod and its claim are deleted; the next claim has the same phone, and another user's managers work in it."""
    held, spec = world.phones[FIRST].held(), world.phones[FIRST].spec()
    assert spec.exists(), f"{spec} does not exist"
    world.remove(FIRST)
    assert not spec.exists(), f"{spec} is left"
    phone = world.place(NEXT, APP)
    assert phone.held() == held, f"{phone.held()}, before: {held}"
    aosp.works(phone, SECOND)
    aosp.works(world.phones[SECOND], NEXT)


def broken(world: World) -> None:
    """Counter-examples: a CDI spec without device nodes, or without mounts, is noticed; the whole one works again."""
    phone = world.phones[NEXT]
    spec = phone.spec()
    world.plugin.stop()  # which would write the spec again
    whole = spec.read_text()
    for part in _LEFT_OUT:
        _replace(spec, _without(json.loads(whole), part))
        phone.restart()
        say(f"CDI spec without {part}:")
        aosp.noticed(phone, SECOND, aosp.ABORTED)
    _replace(spec, json.loads(whole))
    phone.restart()
    aosp.works(phone, SECOND)
    world.start_plugin()


def shared(world: World) -> None:
    """Counter-example: two pods that share a claim share a phone, which is noticed."""
    world.remove(NEXT)
    with world.claim(_SHARED):
        phone, other = (world.place(name, SYSTEM, _SHARED) for name in (FIRST, NEXT))
        aosp.registered(phone)
        aosp.noticed(other, FIRST, aosp.SHARED)
        world.remove(FIRST, NEXT)


def ended(world: World) -> None:
    """Pods, plugin, kubelet and containerd end."""
    world.leave()
    tenants.remove_devices()


def _without(spec: dict[str, Any], part: str) -> dict[str, Any]:
    """Remove a part from what containers get, which must have it."""
    for device in spec["devices"]:
        del device["containerEdits"][part]
    return spec


def _replace(path: Path, spec: dict[str, Any]) -> None:
    """Replace a CDI spec at once: containerd reads it when it changes."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(spec))
    new.rename(path)


def items(oci_runtime: str) -> list[Item[World]]:
    """Return the items with a container runtime."""

    def named(function: Callable[..., None], title: str = "", **more: object) -> Item[World]:
        return Item(f"pods with claims, {oci_runtime}{title}: {sentence(function)}", partial(function, **more))

    def of(kind: Kind) -> list[Item[World]]:
        title = f", {kind.title}"
        counter_examples = (broken, shared) if (kind, oci_runtime) == (tenants.BINDERFS, RUNTIMES[0]) else ()
        functions = (tests, apart, next_claim, *counter_examples)
        return [named(works, title, kind=kind), *(named(function, title) for function in functions)]

    return [*of(tenants.FOUND), *of(tenants.BINDERFS), named(ended)]
