"""The result of a run: repetitions with the figures of all contestants. Medians, spreads, ratios and verdicts."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tests.bench.contestants import EMPTY, OURS
from tests.bench.machine import Load  # noqa: TC001 - msgspec reads the annotations
from tests.bench.samples import Summary  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.figures import Figure

FORMAT = 2


class Repetition(msgspec.Struct):
    """One repetition of all measures."""

    load: Load
    contestants: dict[str, dict[str, Summary]]
    """By the contestant's name and the samples' key."""
    failures: dict[str, dict[str, str]] = {}
    """Why a contestant has no samples, or fewer than others."""


class Run(msgspec.Struct):
    """A run, which takes all contestants in turns."""

    format: int
    machine: dict[str, str | int]
    commands: dict[str, str]
    """The contestants' command lines, by name, in the order of the columns of tables."""
    repetitions: list[Repetition]
    quick: bool = False


class Spread(NamedTuple):
    """The values of several repetitions."""

    median: float
    least: float
    most: float
    values: int


def as_json(run: Run) -> str:
    """Return the text of a run's file."""
    return msgspec.json.format(msgspec.json.encode(run), indent=1).decode() + "\n"


def read(text: str) -> Run:
    """Return the run in a file's text. Raises ValueError for another format."""
    run = msgspec.json.decode(text, type=Run)
    if run.format != FORMAT:
        raise ValueError(f"the file has format {run.format}, not {FORMAT}")
    return run


def spread(values: Sequence[float]) -> Spread | None:
    """Return the spread of the values, or None without values."""
    return Spread(statistics.median(values), min(values), max(values), len(values)) if values else None


def values(run: Run, name: str, figure: Figure) -> list[float]:
    """Return the figure of a contestant in each repetition that has it, in the figure's unit."""
    return [value for repetition in run.repetitions if (value := _value(repetition, name, figure)) is not None]


def ratios(run: Run, name: str, figure: Figure) -> list[float]:
    """Return the ratios of a contestant's figure to the best empty plugin's, each within one repetition."""
    found = []
    for repetition in run.repetitions:
        value, reference = _value(repetition, name, figure), best_empty(repetition, figure)
        divisor = _value(repetition, reference, figure) if reference else None
        if value is not None and divisor:
            found.append(value / divisor)
    return found


def best_empty(repetition: Repetition, figure: Figure) -> str | None:
    """Return the name of the empty plugin with the best median of the figure's samples, or None without one.

    The p99 is therefore compared with the p99 of the handler that has the best median.
    """
    medians = {
        name: by_key[figure.samples].median
        for name, by_key in repetition.contestants.items()
        if name.startswith(EMPTY) and figure.samples in by_key
    }
    if not medians:
        return None
    return (max if figure.rate else min)(medians, key=lambda name: medians[name])


def reached(run: Run, figure: Figure) -> list[bool]:
    """Return whether this project's plugin reached the target in each repetition that has the figure, then overall."""
    numbers, relative = values(run, OURS, figure), ratios(run, OURS, figure)
    if not numbers:
        return []
    by_repetition = [_reaches(figure, value, ratio) for value, ratio in _pairs(numbers, relative)]
    overall = _reaches(figure, statistics.median(numbers), statistics.median(relative) if relative else None)
    return [*by_repetition, overall]


def failed(run: Run, name: str, figure: Figure) -> bool:
    """Return whether the contestant was asked for the figure in vain."""
    return any(figure.samples in repetition.failures.get(name, {}) for repetition in run.repetitions)


def _pairs(numbers: list[float], relative: list[float]) -> list[tuple[float, float | None]]:
    if len(relative) == len(numbers):
        return list(zip(numbers, relative, strict=True))
    return [(number, None) for number in numbers]


def _reaches(figure: Figure, value: float, ratio: float | None) -> bool:
    target = figure.target
    within_limit = bool(target.limit) and value <= target.limit
    if not target.ratio or ratio is None:
        return within_limit
    return within_limit or (ratio >= target.ratio if figure.rate else ratio <= target.ratio)


def _value(repetition: Repetition, name: str, figure: Figure) -> float | None:
    found = repetition.contestants.get(name, {}).get(figure.samples)
    return None if found is None else float(getattr(found, figure.statistic)) * figure.scale
