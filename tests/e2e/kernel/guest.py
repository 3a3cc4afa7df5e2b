"""In the guest: proves the items of one boot, and tells of each in a line of JSON.

``python -m tests.e2e.kernel.guest SUITE PROBE``; ``__main__`` on the machine outside reads the lines.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aosp_plugin.testing import Kubelet
from tests.e2e.kernel.suite import SUITES
from tests.e2e.kernel.world import DIRECTORY, World, open_the_way

if TYPE_CHECKING:
    from tests.e2e.kernel.item import Item

_SECONDS: Final = 240
"""How long one item may take."""


def tell(**word: object) -> None:
    """Send a line to the machine outside."""
    sys.stdout.write(json.dumps(word) + "\n")
    sys.stdout.flush()


async def prove(one: Item, world: World) -> None:
    """Prove an item, and tell what came of it."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(_SECONDS):
            await one.prove(world)
    except Exception as error:  # noqa: BLE001 - whatever happens, the item was not proved
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} at: {where.line}"
        tell(title=one.title, passed=False, detail=detail)
    else:
        tell(title=one.title, passed=True, seconds=time.monotonic() - started)


async def main(suite: str, probe: str) -> None:
    """Prove all items of a suite."""
    DIRECTORY.mkdir()
    open_the_way(sys.executable)
    open_the_way(__file__)
    async with Kubelet(DIRECTORY / "kubelet") as kubelet:
        world = World(kubelet, Path(probe))
        for one in SUITES[suite]:
            await prove(one, world)
        await world.stop()
    tell(end=suite)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
