"""In the guest: proves the items of one boot, and tells of each in a line of JSON.

``python -m tests.e2e.kernel.guest SUITE PART...``; ``__main__`` on the machine outside reads the lines.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from aosp_plugin.testing import Kubelet
from tests.e2e.common.report import describe
from tests.e2e.kernel import items_pods, items_provision
from tests.e2e.kernel.suite import SUITES
from tests.e2e.kernel.world import DIRECTORY, World, open_the_way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.kernel.item import Item

_SECONDS: Final = 240
"""How long one item may take."""

Place = TypeVar("Place")


def tell(**word: object) -> None:
    """Send a line to the machine outside."""
    sys.stdout.write(json.dumps(word) + "\n")
    sys.stdout.flush()


async def prove(one: Item[Place], place: Place) -> None:
    """Prove an item, and tell what came of it."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(_SECONDS):
            outcome = one.prove(place)
            if outcome is not None:
                await outcome
    except Exception as error:  # noqa: BLE001 - whatever happens, the item was not proved
        tell(title=one.title, passed=False, detail=describe(error))
    else:
        tell(title=one.title, passed=True, seconds=time.monotonic() - started)


async def with_stand_in(items: Sequence[Item[World]], probe: Path) -> None:
    """Prove items with the stand-in kubelet, and containers that are run by the runtimes themselves."""
    DIRECTORY.mkdir()
    open_the_way(sys.executable)
    open_the_way(__file__)
    async with Kubelet(DIRECTORY / "kubelet") as kubelet:
        world = World(kubelet, probe)
        for one in items:
            await prove(one, world)
        await world.stop()


async def with_kubelet(probe: Path, kubelet: Path, image: Path, kustomize: Path) -> None:
    """Prove the items with a real kubelet: of a plugin that is given nodes, and of one that makes them."""
    world = items_pods.start(probe, kubelet, image)
    for one in items_pods.ITEMS:
        await prove(one, world)
    world = items_provision.start(world, kustomize, items_pods.WORK / "provision")
    for one in items_provision.ITEMS:
        await prove(one, world)


async def main(suite: str, *parts: str) -> None:
    """Prove all items of a suite."""
    paths = [Path(part) for part in parts]
    if suite == "pods":
        await with_kubelet(*paths)
    else:
        await with_stand_in(SUITES[suite], *paths)
    tell(end=suite)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
