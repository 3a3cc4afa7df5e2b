"""Sums of the histograms in a text of Prometheus metrics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAMPLE: Final = re.compile(r"^(\w+)_(sum|count)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Series(NamedTuple):
    """The name and the labels of a histogram's series."""

    name: str
    labels: frozenset[tuple[str, str]]


class Total(NamedTuple):
    """The observations of a histogram."""

    number: int
    seconds: float


def parse(text: str) -> dict[Series, Total]:
    """Return the totals of all histograms and summaries in a text of metrics."""
    values: dict[Series, dict[str, float]] = {}
    for name, kind, labels, value in _SAMPLE.findall(text):
        series = Series(name, frozenset(_LABEL.findall(labels)))
        values.setdefault(series, {})[kind] = float(value)
    return {series: Total(int(found["count"]), found["sum"]) for series, found in values.items() if len(found) == 2}


def since(before: Mapping[Series, Total], after: Mapping[Series, Total]) -> dict[Series, Total]:
    """Return what was observed between two texts."""
    none = Total(0, 0.0)
    return {
        series: Total(total.number - before.get(series, none).number, total.seconds - before.get(series, none).seconds)
        for series, total in after.items()
    }


def total(totals: Mapping[Series, Total], name: str, **labels: str) -> Total:
    """Return the sum of a histogram's series that have these labels."""
    found = [value for series, value in totals.items() if series.name == name and labels.items() <= series.labels]
    return Total(sum(value.number for value in found), sum(value.seconds for value in found))
