"""Steps of the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.registry import at_once

if TYPE_CHECKING:
    import random

    from tests.chaos.world import World


@at_once("clock")
def clock_is_stepped(world: World, rng: random.Random) -> None:
    """The plugin's clock steps backward or forward, by a second or by years."""
    world.step_clock(rng.choice([-1, 1]) * rng.choice([1.0, 3600.0, 86400.0 * 365 * 3]))
