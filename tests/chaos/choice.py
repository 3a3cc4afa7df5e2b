"""Which faults happen at which step: a pure function of the seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.chaos.registry import Fault

MORE = 0.45
"""Probability that one more fault happens in a step."""

MOST = 4
"""Faults in a step."""

LASTING = 2
"""Of those, how many may last."""


class Step(NamedTuple):
    """What happens between two checks."""

    faults: tuple[str, ...]
    """Names, those that last first: the others happen while they do."""
    seed: str
    """For what a fault itself leaves to chance."""


def plan(seed: int, steps: int, faults: Iterable[Fault]) -> list[Step]:
    """Return the steps of a seed. Those of a longer run begin with those of a shorter one."""
    catalogue = sorted(faults, key=lambda fault: fault.name)
    return [_step(f"{seed}/{number}", catalogue) for number in range(1, steps + 1)]


def _step(seed: str, catalogue: Sequence[Fault]) -> Step:
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    chosen: list[Fault] = []
    while fitting := [fault for fault in catalogue if goes_with(fault, chosen)]:
        chosen += rng.choices(fitting, [fault.weight for fault in fitting])
        if len(chosen) == MOST or rng.random() >= MORE:
            break
    chosen.sort(key=lambda fault: not fault.lasts)
    return Step(tuple(fault.name for fault in chosen), seed)


def goes_with(fault: Fault, others: Sequence[Fault]) -> bool:
    """Say whether a fault can happen in one step with others."""
    if fault in others:
        return False
    lasting = [other for other in others if other.lasts]
    if fault.lasts and (len(lasting) == LASTING or fault.place in {other.place for other in lasting}):
        return False
    if any(other.alone for other in others):
        return _is_of_nodes(fault)
    return not fault.alone or all(map(_is_of_nodes, others))


def _is_of_nodes(fault: Fault) -> bool:
    return fault.place == "nodes" and not fault.lasts
