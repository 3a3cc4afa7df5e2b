"""The commands of docs/quickstart.md, as the items of ``make test-cluster`` read them."""

from __future__ import annotations

import re

import yaml

from tests.e2e.cluster import quickstart

COMMANDS = quickstart.commands()


def test_each_substitute_replaces_a_command() -> None:
    unused = {
        pattern
        for pattern in quickstart.SUBSTITUTES
        if not any(re.match(pattern, command.line) for command in COMMANDS)
    }
    assert unused == set()


def test_commands_of_other_programs_than_these_have_a_substitute() -> None:
    programs = {"sha256sum", "grep", "echo", "awk", "sudo", "kubectl", "helm"}
    assert {command.line for command in COMMANDS if command.substitute.split(" ")[0] not in {*programs, ""}} == set()


def test_a_command_over_two_lines_is_one_and_its_comment_is_the_expected_output() -> None:
    (install,) = (command.line for command in COMMANDS if command.line.startswith("helm install"))
    assert install.endswith("--set provision.enabled=true --set config.phones.count=10")
    (driver,) = (command for command in COMMANDS if command.line == "grep binder /proc/filesystems")
    assert driver.output == "nodev binder"
    assert driver.on_node


def test_commands_of_kubectl_and_helm_do_not_run_on_the_node() -> None:
    assert {
        command.line for command in COMMANDS if command.on_node and command.line.startswith(("kubectl", "helm"))
    } == set()


def test_the_pod_requests_a_phone() -> None:
    (container,) = yaml.safe_load(quickstart.manifest())["spec"]["containers"]
    assert container["resources"] == {"limits": {"aosp.io/phone": 1}}
