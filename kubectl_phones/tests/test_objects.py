"""Objects of the API server."""

from typing import Any

import pytest

from kubectl_phones import objects
from kubectl_phones.tests.clusters import NOW, PHONE, plugin_pod, pod


def limits(count: str, **fields: str) -> dict[str, Any]:
    """Return a container that requests phones."""
    return {"resources": {"limits": {PHONE: count, "cpu": "2"}}, **fields}


def test_a_pod_has_its_extended_resources_only() -> None:
    found = objects.phone_pod(pod())
    assert found is not None
    assert (found.namespace, found.name, found.node, found.created, found.deleted) == ("a", "p1", "n1", NOW - 600, None)
    assert found.limits == {PHONE: 1}


@pytest.mark.parametrize("fields", [{"phones": 0}, {"status": {"phase": "Succeeded"}}])
def test_pods_without_extended_resources_and_pods_that_have_succeeded_are_skipped(fields: dict[str, Any]) -> None:
    assert objects.phone_pod(pod(**fields)) is None


@pytest.mark.parametrize(
    ("containers", "initial", "count"),
    [
        ([limits("1"), limits("2")], [], 3),
        ([limits("1")], [limits("2"), limits("3")], 3),
        ([limits("4")], [limits("3")], 4),
        ([limits("1")], [limits("2", restartPolicy="Always")], 3),
    ],
)
def test_limits_of_init_containers_count_as_the_scheduler_counts_them(
    containers: list[Any], initial: list[Any], count: int
) -> None:
    found = objects.phone_pod(pod(spec={"containers": containers, "initContainers": initial}))
    assert found is not None
    assert found.limits == {PHONE: count}


def test_a_pod_has_what_its_containers_wait_for_or_how_they_failed() -> None:
    states = [
        {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        {"terminated": {"reason": "Error", "exitCode": 137}},
        {"terminated": {"reason": "Completed", "exitCode": 0}},
        {"running": {}},
    ]
    found = objects.phone_pod(pod(status={"containerStatuses": [{"state": state} for state in states]}))
    assert found is not None
    assert found.waiting == (("CrashLoopBackOff", "back-off"), ("Error", "exit code 137"))


def test_only_pods_of_a_daemon_set_are_plugins() -> None:
    """The pod of ``helm test`` has the same label."""
    assert objects.plugin_pod(plugin_pod(metadata={"ownerReferences": []})) is None
    assert objects.plugin_pod(plugin_pod()) is not None


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("120", 120), ("1k", 1000), ("2Ki", 2048), ("3M", 3_000_000), ("12e3", 12_000), ("1500m", 0), ("", 0)],
)
def test_a_quantity_is_a_whole_number(text: str, count: int) -> None:
    assert objects.amount(text) == count
