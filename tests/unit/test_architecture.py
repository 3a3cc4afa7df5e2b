"""docs/architecture.md: its list of rooms is the tree."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "aosp_plugin"


def named() -> list[str]:
    """Return the path of every file and room in the list, which its indentation tells."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = text.partition("## The rooms\n")[2].partition("\n## ")[0]
    within: dict[int, str] = {}
    paths = []
    for indentation, name in re.findall(r"^( {4,})(\S+)", block, flags=re.MULTILINE):
        depth = len(indentation)
        within = {other: path for other, path in within.items() if other < depth} | {depth: name}
        paths.append("".join(within.values()))
    return paths


def test_every_module_is_in_the_list_once() -> None:
    """Also those of the page; left out are what makes a directory a package, and what protoc made."""
    files = {path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".js", ".css", ".html", ".svg"}}
    files -= {*PACKAGE.rglob("__*__.py"), *(PACKAGE / "deviceplugin" / "api").iterdir()}
    expected = {str(path.relative_to(ROOT)) for path in files}
    counted = Counter(path for path in named() if not path.endswith("/"))
    assert counted.keys() == expected
    assert set(counted.values()) == {1}


def test_every_room_is_there() -> None:
    """And each package is a room in the list."""
    rooms = {path for path in named() if path.endswith("/")}
    assert rooms == {f"{path.parent.relative_to(ROOT)}/" for path in PACKAGE.rglob("__init__.py")}
