"""Runs in the guest: check the items of one boot, and write each result as a line of JSON.

``python -m tests.e2e.kernel.guest SUITE PATH...``; ``__main__`` on the host reads the lines.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from kubelet_standin import Kubelet
from tests.e2e.common.report import describe
from tests.e2e.kernel import (
    confinement,
    items_aosp,
    items_phone_pods,
    items_pods,
    items_systemd,
    items_systemd_pods,
    versions,
)
from tests.e2e.kernel.suite import SUITES
from tests.e2e.kernel.world import DIRECTORY, World, make_reachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.kernel.item import Item

_SECONDS: Final = 600
"""The time limit of one item."""

Environment = TypeVar("Environment")


def send(**message: object) -> None:
    """Send a line to the host."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def check(item: Item[Environment], environment: Environment) -> None:
    """Check an item, and send the result."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(_SECONDS):
            outcome = item.check(environment)
            if outcome is not None:
                await outcome
    except Exception as error:  # noqa: BLE001 - the item failed, whatever the error is
        send(title=item.title, passed=False, detail=describe(error))
    else:
        send(title=item.title, passed=True, seconds=time.monotonic() - started)


async def with_stand_in(items: Sequence[Item[World]], probe: Path) -> None:
    """Check items with the stand-in kubelet; the items run their containers by calling the runtimes."""
    DIRECTORY.mkdir(exist_ok=True)
    make_reachable(sys.executable)
    make_reachable(__file__)
    async with Kubelet(DIRECTORY / "kubelet") as kubelet:
        world = World(kubelet, probe)
        for item in items:
            await check(item, world)
        await world.stop()


async def with_kubelet(probe: Path, kubelet: Path, image: Path, kustomize: Path) -> None:
    """Check the items with a real kubelet: of deploy/base, deploy/privileged, and deploy/provision."""
    world = items_pods.start(probe, kubelet, image)
    for item in items_pods.ITEMS:
        await check(item, world)
    for name, items in items_phone_pods.ITEMS.items():
        world = items_phone_pods.start(world, kustomize, name)
        for item in items:
            await check(item, world)
    await check(items_phone_pods.RENAMED, world)


async def with_android(suite: str, probe: Path, android: Path | None = None) -> None:
    """Check items with Android's binder software in containers, or without it those that do not need it."""
    DIRECTORY.mkdir()
    if android is not None:
        items_aosp.prepare(android)
    await with_stand_in([item for item in SUITES[suite] if android or item not in items_aosp.QUICK], probe)


async def with_systemd(probe: Path, runc: Path, crun: Path) -> None:
    """Check the items with systemd as process 1, also with newer runtimes than Debian's."""
    items_systemd.PROGRAMS.update(runc=str(runc), crun=str(crun))
    await with_stand_in(items_systemd.ITEMS, probe)


async def with_systemd_and_kubelet(probe: Path, runc: Path, crun: Path, *paths: Path) -> None:
    """Check the items with a real kubelet, and systemd as process 1."""
    items_systemd.PROGRAMS.update(runc=str(runc), crun=str(crun))
    world = items_systemd_pods.start(probe, *paths)
    for item in items_systemd_pods.ITEMS:
        await check(item, world)


async def main(suite: str, *arguments: str) -> None:
    """Check all items of a suite."""
    paths = [Path(argument) for argument in arguments]
    if confinement.CONFINED:
        confinement.load()
    for line in versions.lines():
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    if suite == "pods":
        await with_kubelet(*paths)
    elif suite == "systemd":
        await with_systemd(*paths)
    elif suite == "systemd-pods":
        await with_systemd_and_kubelet(*paths)
    elif suite == "core" or suite.startswith("android"):
        await with_android(suite, *paths)
    else:
        await with_stand_in(SUITES[suite], *paths)
    send(end=suite)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
