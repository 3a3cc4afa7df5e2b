"""Links of the documents lead to files and headings, and their commands are what a cluster runs."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from aosp_plugin.binder.devices.sets import Numbered
from tests.e2e.cluster import documented

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / name
    for name in subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True).split()  # noqa: S607 - git
]


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


def test_tests_that_pages_name_exist() -> None:
    command = ["git", "grep", "-ohE", r"(def|^class) test_\w+", "--", "*.py"]
    functions = subprocess.check_output(command, cwd=ROOT, text=True).split()[1::2]  # noqa: S603 - git
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split()  # noqa: S607 - git
    known = {*functions, *(Path(name).stem for name in listed)}
    named = {name for path in DOCUMENTS for name in re.findall(r"`(test_\w+)`", path.read_text(encoding="utf-8"))}
    assert sorted(named - known) == []


def test_the_page_about_installation_has_the_commands_that_a_cluster_runs() -> None:
    """The tests in a real cluster take them from there, so that a page that loses one fails late."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/e2e/cluster").glob("test_*.py"))
    starts = set(re.findall(r'documented\.command\("([^"]+)"\)', sources))
    assert len(starts) >= 10
    for start in starts:
        documented.command(start)


def test_the_page_about_phones_says_which_slice_the_first_set_has() -> None:
    page = " ".join((ROOT / "docs/phones.md").read_text(encoding="utf-8").split())
    (rule,) = re.findall(r"N is the first number of the set.*?leave the slice", page)
    examples = [
        (yaml.safe_load(sets), int(number))
        for number, group in re.findall(r"from (\d+) with (.*?)(?=, and from|, which)", rule)
        for sets in re.findall(r"`(.*?)`", group)
    ]
    assert len(examples) == 3
    for sets, number in examples:
        layout = Numbered("n", **sets)
        (first,) = layout.ids([f"n{layout.first}"])
        assert layout.set_of(first).number == number
