"""The GitHub workflows agree with the Makefile and with the package. ``make test-workflows`` checks their syntax."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.release.single_file import supported

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {path.stem: path.read_text("utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}
WORKFLOWS: dict[str, dict[str, Any]] = {
    # YAML 1.1 reads the key "on" as true.
    name: {"on" if key is True else str(key): value for key, value in yaml.safe_load(text).items()}
    for name, text in TEXTS.items()
}


def test_the_fast_tests_run_on_every_supported_python() -> None:
    versions = WORKFLOWS["tests"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions == supported((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_workflows_make_targets_that_exist_and_all_stages_of_ci() -> None:
    """Stages that limit themselves to a core set run all items at night."""
    steps = [step for each in WORKFLOWS.values() for job in each["jobs"].values() for step in job.get("steps", [])]
    makes = r"(?m)(?:^|\()make (?:-s )?([a-z-]+)"
    used = {target for step in steps for target in re.findall(makes, step.get("run", ""))}
    used |= set(WORKFLOWS["nightly"]["jobs"]["real-parts"]["strategy"]["matrix"]["target"])
    rules = re.findall(r"(?m)^([a-z -]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert used - {name for rule in rules for name in rule.split()} == set()
    stages = re.findall(r'(?m)^stage "make ([a-z-]+)"', (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert set(stages) - used == set()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_only_a_tagged_release_may_publish(name: str) -> None:
    """Rights are given to single jobs. Those that may write wait for the tests and the build."""
    used = re.findall(r"uses: ([^.\s]\S*)(.*)", TEXTS[name])
    assert [action for action in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+", "".join(action))] == []
    assert WORKFLOWS[name]["permissions"] == {}
    for job in WORKFLOWS[name]["jobs"].values():
        if "write" in job["permissions"].values():
            events = WORKFLOWS[name]["on"]
            assert (name, [*events], [*events["push"]]) == ("release", ["push"], ["tags"])
            assert "environment" in job
            assert "registry" in job["needs"] or set(job["needs"]) == {"tests", "build"}


def test_the_update_bot_watches_the_base_image() -> None:
    """It does not read ARG lines (dependabot-core, issue 2057)."""
    watched = (ROOT / ".github" / "base-image" / "Dockerfile").read_text(encoding="utf-8")
    used = re.findall(r"(?m)^ARG BASE=(\S+@sha256:[0-9a-f]{64})$", (ROOT / "Dockerfile").read_text("utf-8"))
    assert re.findall(r"(?m)^FROM (\S+)$", watched) == used
    assert len(used) == 1
