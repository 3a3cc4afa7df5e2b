#!/usr/bin/env python3
"""Report phrases that CONTRIBUTING.md asks to avoid, in texts that users or contributors read.

The phrases and the usual wording are the table below the heading "Phrases to avoid" in CONTRIBUTING.md. In Python
files, only comments and string literals are checked, docstrings included; other files are checked whole. A phrase is
found across line breaks and in any case. A line that contains ``wording: ok`` is accepted as it is.

Run it as ``python hack/check_wording.py [PATH ...]``; without a path it checks the whole repository. The exit code is 1
if a phrase is found. It needs the standard library only.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "CONTRIBUTING.md"
HEADING = "### Phrases to avoid"
ALLOWED = "wording: ok"

PLACES = (
    "aosp_plugin",
    "deploy",
    "docs",
    "examples",
    "hack",
    "kubelet_standin",
    "tests",
    ".ci",
    ".github",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Dockerfile",
    "Makefile",
    "README.md",
    "pyproject.toml",
)
SUFFIXES = {
    "", ".c", ".conf", ".css", ".go", ".html", ".js", ".json", ".md", ".proto", ".py", ".service", ".sh", ".toml",
    ".tpl", ".txt", ".yaml", ".yml",
}  # fmt: skip
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$|^deploy/chart/(files/|values\.schema\.json)|prometheusrule\.yaml$")
SKIPPED = {"__pycache__", "node_modules"}

_GAP = r"[\s#>|*\"'`/]+"  # between two words: also a line break with a comment sign, or two adjacent literals
_STRING_TOKENS = {
    getattr(tokenize, name) for name in ("STRING", "COMMENT", "FSTRING_MIDDLE") if hasattr(tokenize, name)
}


class Rule(NamedTuple):
    """A phrase to avoid and the usual wording."""

    phrase: str
    instead: str
    pattern: re.Pattern[str]


class Finding(NamedTuple):
    """A phrase at a place."""

    path: Path
    line: int
    text: str
    rule: Rule


def rules(guide: str) -> list[Rule]:
    """Return the rules in the text of CONTRIBUTING.md.

    A table row may list several phrases in backquotes; a slash separates alternatives for a word.
    """
    table = guide.partition(HEADING)[2].partition("\n#")[0]
    found: list[Rule] = []
    for phrases, instead in re.findall(r"^\| (`.+?) \| (.+?) \|$", table, flags=re.MULTILINE):
        for phrase in re.findall(r"`([^`]+)`", phrases):
            words = _GAP.join(_word(word) for word in phrase.split())
            start = "" if phrase.startswith("'") else r"(?<![\w-])"
            found.append(Rule(phrase, instead, re.compile(rf"{start}{words}(?![\w-])", re.IGNORECASE)))
    return found


def _word(word: str) -> str:
    """Return the regular expression for one word of a phrase; a slash separates alternatives."""
    return "(?:" + "|".join(re.escape(alternative) for alternative in word.split("/")) + ")"


def readable_text(path: Path) -> str:
    """Return the text of a file. For Python, code is replaced by NUL characters, so that positions stay the same."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".py":
        return text
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    masked = [char if char.isspace() else "\0" for char in text]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _STRING_TOKENS:
            start, end = (starts[row - 1] + column for row, column in (token.start, token.end))
            masked[start:end] = text[start:end]
    return "".join(masked)


def findings(path: Path, text: str, phrases: Iterable[Rule]) -> Iterator[Finding]:
    """Yield each phrase in the text of a file, unless a line that it touches is marked as accepted."""
    for rule in phrases:
        for match in rule.pattern.finditer(text):
            first = text.count("\n", 0, match.start())
            last = text.count("\n", 0, match.end())
            if not any(ALLOWED in line for line in text.splitlines()[first : last + 1]):
                yield Finding(path, first + 1, " ".join(match.group().split()), rule)


def files(places: Iterable[Path]) -> Iterator[Path]:
    """Yield the files to check, without generated ones."""
    for place in places:
        candidates = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in candidates:
            name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()
            checked = path.suffix in SUFFIXES and not GENERATED.search(name) and not SKIPPED & set(path.parts)
            if checked and path.is_file():
                yield path


def outside_table(path: Path, text: str) -> str:
    """Return the text with the table of phrases blanked, if it is the guide itself."""
    if path.resolve() != GUIDE:
        return text
    head, heading, rest = text.partition(HEADING)
    table, end, tail = rest.partition("\n#")
    return head + heading + re.sub(r"[^\n]", " ", table) + end + tail


def main(arguments: list[str]) -> int:
    """Print each finding as ``file:line: phrase -> usual wording``."""
    phrases = rules(GUIDE.read_text(encoding="utf-8"))
    places = [Path(argument).resolve() for argument in arguments] or [ROOT / place for place in PLACES]
    found: list[Finding] = []
    for path in files(places):
        text = outside_table(path, readable_text(path))
        found += findings(path, text, phrases)
    for finding in sorted(found, key=lambda finding: (finding.path, finding.line)):
        path = finding.path.relative_to(ROOT) if finding.path.is_relative_to(ROOT) else finding.path
        print(f'{path}:{finding.line}: "{finding.text}": write {finding.rule.instead}')
    if found:
        print(f"{len(found)} phrases to reword; CONTRIBUTING.md lists them", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
