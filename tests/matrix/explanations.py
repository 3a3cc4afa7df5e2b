"""What explanations.toml says about failed items."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = Path(__file__).with_name("explanations.toml")


def load() -> Mapping[str, Mapping[str, str]]:
    """Return the explanations of each cell: a part of a failed item's line, and what the failure means."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def explain(failure: str, explanations: Mapping[str, str]) -> str | None:
    """Return what the explanations of a cell say about a failed item; the longest matching part counts."""
    parts = [part for part in explanations if part in failure]
    return explanations[max(parts, key=len)] if parts else None
