"""Samples of one repetition, and their summaries."""

from __future__ import annotations

import collections
import statistics
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.trial import Trial


class Summary(msgspec.Struct, frozen=True):
    """The summary of samples, in their unit."""

    samples: int
    median: float
    p99: float
    worst: float
    """The maximum."""


def summary(samples: Sequence[float], scale: float = 1) -> Summary:
    """Return the summary of one or more samples. The p99 of less than 100 samples is their maximum."""
    ordered = sorted(sample * scale for sample in samples)
    p99 = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
    return Summary(len(ordered), statistics.median(ordered), p99, ordered[-1])


class Samples:
    """All samples of a repetition, by contestant and key, and why others are missing."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, list[float]]] = collections.defaultdict(
            lambda: collections.defaultdict(list)
        )
        self._failures: dict[str, dict[str, str]] = collections.defaultdict(dict)

    def add(self, trial: Trial, key: str, sample: float) -> None:
        """Add a sample: seconds, megabytes or a count."""
        self._samples[trial.contestant.name][key].append(sample)

    def fail(self, trial: Trial, key: str, error: Exception) -> None:
        """Record that there are no samples, or no further ones."""
        self._failures[trial.contestant.name][key] = f"{type(error).__name__}: {error}"

    def of(self, trial: Trial, key: str) -> list[float]:
        """Return the samples of a key, from all trials of a contestant."""
        return list(self._samples[trial.contestant.name][key])

    def summaries(self) -> dict[str, dict[str, Summary]]:
        """Return the summaries by contestant and key."""
        return {
            name: {key: summary(samples) for key, samples in by_key.items() if samples}
            for name, by_key in self._samples.items()
        }

    def failures(self) -> dict[str, dict[str, str]]:
        """Return the failures by contestant and key."""
        return {name: dict(by_key) for name, by_key in self._failures.items() if by_key}
