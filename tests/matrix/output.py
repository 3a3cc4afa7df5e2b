"""What a cell's command prints: items in the format of ``tests.e2e.common.report``, and ``# version NAME: VALUE``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.common import cache

_ITEM: Final = re.compile(r"(?P<ok>not ok|ok) (?:\d+ )?- (?P<title>.*)")
_SKIP: Final = re.compile(r"(?P<title>.*?) # skip: (?P<reason>.*)")
_VERSION: Final = re.compile(r"# version (?P<name>[^:]+): (?P<value>.+)")
_LENGTH: Final = 300
"""Characters of a failed item, or of a reason, that are kept."""
_ROOT: Final = Path(__file__).resolve().parents[2]
_AND: Final = " and "
"""Separates the versions of a component of which a command ran several, in the order of their reports."""


@dataclass
class Output:
    """The items and versions of a command's lines so far."""

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    """``title : detail`` of each failed item."""
    skipped: dict[str, int] = field(default_factory=dict)
    """How many items were skipped, by reason."""
    versions: dict[str, str] = field(default_factory=dict)

    def read(self, line: str) -> bool:
        """Count a line, and return whether it is part of the report."""
        if match := _VERSION.fullmatch(line):
            self._add_version(match["name"].strip(), match["value"].strip())
        elif match := _ITEM.fullmatch(line):
            skip = _SKIP.fullmatch(match["title"])
            if match["ok"] == "not ok":
                self.failures.append(without_places(match["title"])[:_LENGTH])
            elif skip:
                reason = without_places(skip["reason"])[:_LENGTH]
                self.skipped[reason] = self.skipped.get(reason, 0) + 1
            else:
                self.passed += 1
        return bool(match) or line.startswith("# ")

    def _add_version(self, name: str, version: str) -> None:
        known = self.versions[name].split(_AND) if name in self.versions else []
        if version not in known:
            self.versions[name] = _AND.join([*known, version])


def fits(version: str, beginning: str) -> bool:
    """Return whether a version is the expected one: with ``1.6. and 2.``, two versions were run, and begin so."""
    versions, beginnings = version.split(_AND), beginning.split(_AND)
    return len(versions) == len(beginnings) and all(map(str.startswith, versions, beginnings))


def without_places(text: str) -> str:
    """Return a text without the directories of this machine and the hosts that it uses: results are published."""
    for path, name in ((cache.root(), "CACHE"), (_ROOT, "."), (Path.home(), "~")):
        text = text.replace(str(path), name)
    text = re.sub(r"/tmp/[\w.-]+", "/tmp/…", text)
    return re.sub(r"\b(https?|tcp)://[^/\s\"',;]+", r"\1://…", text)
