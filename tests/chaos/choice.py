"""Select the faults of each step: a pure function of the seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.chaos.registry import Fault

CONTINUE = 0.45
"""The probability that a step has another fault."""

MAX_FAULTS = 4
"""The maximum number of faults in a step."""

MAX_LASTING = 2
"""The maximum number of faults in a step that last."""


class Step(NamedTuple):
    """The faults between two checks."""

    faults: tuple[str, ...]
    """Their names; faults that last come first, and the others happen during them."""
    seed: str
    """The seed for the faults' own random choices."""


def plan(seed: int, steps: int, faults: Iterable[Fault]) -> list[Step]:
    """Return the steps of a seed. A longer run starts with the steps of a shorter one."""
    catalogue = sorted(faults, key=lambda fault: fault.name)
    return [_step(f"{seed}/{number}", catalogue) for number in range(1, steps + 1)]


def _step(seed: str, catalogue: Sequence[Fault]) -> Step:
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    chosen: list[Fault] = []
    while fitting := [fault for fault in catalogue if goes_with(fault, chosen)]:
        chosen += rng.choices(fitting, [fault.weight for fault in fitting])
        if len(chosen) == MAX_FAULTS or rng.random() >= CONTINUE:
            break
    chosen.sort(key=lambda fault: not fault.lasts)
    return Step(tuple(fault.name for fault in chosen), seed)


def goes_with(fault: Fault, others: Sequence[Fault]) -> bool:
    """Return whether a fault can happen in the same step as others."""
    if fault in others:
        return False
    lasting = [other for other in others if other.lasts]
    if fault.lasts and (len(lasting) == MAX_LASTING or fault.place in {other.place for other in lasting}):
        return False
    if any(other.alone for other in others):
        return _changes_devices(fault)
    return not fault.alone or all(map(_changes_devices, others))


def _changes_devices(fault: Fault) -> bool:
    return fault.place == "devices" and not fault.lasts
