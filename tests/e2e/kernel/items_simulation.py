"""The simulation of a binderfs is held to this kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.comparison import binderfs_steps, simulated_steps

if TYPE_CHECKING:
    from tests.e2e.kernel.world import World


def same_steps(_: World) -> None:
    """A simulated binderfs answers each call as that of this kernel."""
    real, simulated = binderfs_steps("/run"), simulated_steps()
    pairs = zip(real, simulated, strict=True)
    different = [f"{name}: {found!r}, simulated {other!r}" for (name, found), (_, other) in pairs if found != other]
    assert not different, "; ".join(different)
