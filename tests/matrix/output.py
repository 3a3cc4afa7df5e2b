"""What a cell's command prints: tests as ``pytest -v`` reports them, and ``# version NAME: VALUE``."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.common import cache

_TEST: Final = re.compile(
    r"(?P<name>\S+::.+?) (?P<outcome>PASSED|FAILED|ERROR|SKIPPED)(?: \((?P<reason>.*)\))?(?: +\[ *\d+%\])?"
)
_CAUSE: Final = re.compile(r"(?:FAILED|ERROR) (?P<name>\S+::.+?) - (?P<cause>.*)")
"""A line of pytest's summary, which follows the lines of all tests."""
_MISSING: Final = re.compile(r"skipped: (?P<reason>.*)")
"""The line of a command that cannot run any test."""
_VERSION: Final = re.compile(r"# version (?P<name>[^:]+): +(?P<value>.+)")
_LENGTH: Final = 300
"""Characters of a failed test, or of a reason, that are kept."""
_ROOT: Final = Path(__file__).resolve().parents[2]
_AND: Final = " and "
"""Separates the versions of a component of which a command ran several, in the order of their reports."""


@dataclass
class Output:
    """The tests and versions of a command's lines so far."""

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    """``test : cause`` of each failed test."""
    skipped: dict[str, int] = field(default_factory=dict)
    """How many tests were skipped, by reason."""
    versions: dict[str, str] = field(default_factory=dict)

    def read(self, line: str) -> bool:
        """Count a line, and return whether it is part of the report."""
        if match := _VERSION.fullmatch(line):
            self._add_version(match["name"], match["value"].strip())
        elif match := _CAUSE.fullmatch(line):
            others = [failure for failure in self.failures if failure != match["name"]]
            self.failures = [*others, _published(f"{match['name']} : {match['cause']}")]
        elif match := _MISSING.fullmatch(line):
            self._skip(match["reason"])
        elif match := _TEST.fullmatch(line):
            if match["outcome"] in {"FAILED", "ERROR"}:
                self.failures.append(_published(match["name"]))
            elif match["outcome"] == "SKIPPED":
                self._skip(match["reason"] or "")
            else:
                self.passed += 1
        return bool(match) or line.startswith("# ")

    def _skip(self, text: str) -> None:
        reason = _published(text)
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _add_version(self, name: str, version: str) -> None:
        known = self.versions[name].split(_AND) if name in self.versions else []
        if version not in known:
            self.versions[name] = _AND.join([*known, version])


def fits(version: str, beginning: str) -> bool:
    """Return whether only one version was run, and is the expected one."""
    return version.startswith(beginning) and _AND not in version


def _published(text: str) -> str:
    return without_places(text)[:_LENGTH]


def without_places(text: str) -> str:
    """Return a text without the directories of this machine and the hosts that it uses: results are published."""
    for path, name in ((cache.root(), "CACHE"), (_ROOT, "."), (Path.home(), "~")):
        text = text.replace(str(path), name)
    text = re.sub(r"/tmp/[\w.-]+", "/tmp/…", text)
    return re.sub(r"\b(https?|tcp)://[^/\s\"',;]+", r"\1://…", text)
