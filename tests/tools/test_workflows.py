"""The GitHub workflows agree with the Makefile and with the package. ``make test-workflows`` checks their syntax."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from hack.release.single_file import supported

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}


def workflow(name: str) -> dict[str, Any]:
    """Return a workflow; YAML 1.1 reads its key "on" as true."""
    content = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))
    return {"on" if key is True else str(key): value for key, value in content.items()}


def steps(name: str) -> Iterator[dict[str, Any]]:
    for job in workflow(name)["jobs"].values():
        yield from job.get("steps", [])


def targets(text: str) -> set[str]:
    """Return the targets of make in a script."""
    return set(re.findall(r"(?:^|\()make (?:-s )?([a-z-]+)", text, re.MULTILINE))


def test_the_fast_tests_run_on_every_supported_python() -> None:
    versions = workflow("tests")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions == supported((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_target_that_a_workflow_makes_exists() -> None:
    used = {
        name for workflow_name in WORKFLOWS for step in steps(workflow_name) for name in targets(step.get("run", ""))
    }
    used |= set(workflow("nightly")["jobs"]["real-parts"]["strategy"]["matrix"]["target"])
    rules = re.findall(r"^([a-z -]+):(?!=)", MAKEFILE, re.MULTILINE)
    assert used - {name for rule in rules for name in rule.split()} == set()


def test_every_stage_of_ci_runs_in_a_workflow() -> None:
    """Stages that limit themselves to a core set run all items at night."""
    stages = set(re.findall(r'^stage "make ([a-z-]+)"', CI, re.MULTILINE))
    used = {
        name for workflow_name in WORKFLOWS for step in steps(workflow_name) for name in targets(step.get("run", ""))
    }
    used |= set(workflow("nightly")["jobs"]["real-parts"]["strategy"]["matrix"]["target"])
    assert stages - used == set()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_rights_are_given_to_single_jobs(name: str) -> None:
    text = WORKFLOWS[name].read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment)
    assert workflow(name)["permissions"] == {}
    assert all("permissions" in job for job in workflow(name)["jobs"].values())


def test_one_action_has_one_version() -> None:
    used = {pin for path in WORKFLOWS.values() for pin in re.findall(r"uses: (\S+)@(\S+)", path.read_text("utf-8"))}
    assert len({action for action, _ in used}) == len(used)


def test_only_a_tagged_release_may_publish() -> None:
    """The jobs with rights to write wait for the tests and the build, directly or through the job before."""
    jobs = workflow("release")["jobs"]
    assert list(workflow("release")["on"]) == ["push"]
    assert list(workflow("release")["on"]["push"]) == ["tags"]
    assert set(jobs["registry"]["needs"]) == {"tests", "build"}
    for name in WORKFLOWS:
        for job in workflow(name)["jobs"].values():
            if "write" in job["permissions"].values():
                assert name == "release"
                assert "environment" in job
                assert "registry" in job["needs"] or set(job["needs"]) == {"tests", "build"}


def test_the_update_bot_watches_directories_that_exist() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"pip", "github-actions", "docker", "gomod"}
    for update in updates:
        for directory in update.get("directories", [update.get("directory")]):
            assert (ROOT / directory.strip("/")).is_dir()


def test_the_update_bot_watches_the_base_image() -> None:
    """It does not read ARG lines (dependabot-core, issue 2057)."""
    watched = (ROOT / ".github" / "base-image" / "Dockerfile").read_text(encoding="utf-8")
    used = re.findall(r"^ARG BASE=(\S+@sha256:[0-9a-f]{64})$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert re.findall(r"^FROM (\S+)$", watched, re.MULTILINE) == used
    assert len(used) == 1
