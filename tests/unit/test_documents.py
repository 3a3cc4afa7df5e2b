"""Links of the documents lead to files and headings, and the security tables name existing tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/*.md", "k*/*.md", "tests/**/*.md") for path in ROOT.glob(pattern))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            broken.append(link)
    assert broken == []


def test_the_readme_links_to_every_page() -> None:
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    pages = {path.name for path in ROOT.glob("*.md")} | {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages - set(links) == {"README.md"}


def test_every_row_of_the_security_tables_names_an_existing_test() -> None:
    """A name is a function in ``tests/e2e/kernel`` or ``tests/e2e/cluster``, or a module in ``tests``."""
    table = [line for line in (ROOT / "docs/security.md").read_text().splitlines() if line.startswith("| ")]
    verified_by = [line.rsplit(" | ", 1)[1] for line in table if not line.startswith("| attempt")]
    modules = [path for name in ("kernel", "cluster") for path in (ROOT / "tests/e2e" / name).glob("items_*.py")]
    items = "".join(path.read_text() for path in modules)
    known = {*re.findall(r"^(?:async )?def (\w+)\(", items, re.MULTILINE)}
    known |= {path.stem for path in (ROOT / "tests").rglob("test_*.py")} | {"make fuzz", "tests/unit/config"}
    assert len(verified_by) > 30
    assert {name for cell in verified_by for name in re.findall(r"`([^`]+)`", cell)} <= known
    assert [cell for cell in verified_by if "`" not in cell] == ["(from source, not tested) |"]


def test_every_module_that_the_architecture_names_exists() -> None:
    """Paths are below the checkout, the package, or its framework."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`((?:\w+/)+\w+\.py)`", text))
    assert len(names) > 30
    tops = [ROOT, ROOT / "aosp_plugin", ROOT / "aosp_plugin/framework"]
    assert [name for name in sorted(names) if not any((top / name).exists() for top in tops)] == []
