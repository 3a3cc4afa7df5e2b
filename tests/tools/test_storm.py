"""What is computed from the records of a boot storm, whose errors would be wrong figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.e2e.cluster.storm import records
from tests.e2e.cluster.storm.records import Request, Storm

STORM = Storm(
    expected=("Allocate",),
    created={"a": 100.0, "b": 101.0},
    running={"a": 104.0, "b": 107.0},
    answered=[
        Request("GetPreferredAllocation", 0.01),
        Request("Allocate", 0.02),
        Request("GetPreferredAllocation", 0.01),
        Request("Allocate", 0.03),
    ],
    kubelet={"Allocate": (2, 0.18)},
    warnings={},
    problems=[],
)
"""Two pods that start in 4 and 6 s, of which requests to the plugin take 0.2 s."""
FORBIDDEN = (
    "FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: "
    'fetch ResourceClaim a-phone-x: resourceclaims.resource.k8s.io "a-phone-x" is forbidden: User "system:node:node-1" '
    'cannot get resource "resourceclaims" in API group "resource.k8s.io" in the namespace "default": '
    "no relationship found between node 'node-1' and this object"
)
"""What kubelet 1.34.4 has reported about a pod."""


def test_share_of_the_start_time_has_the_kubelets_seconds_of_what_it_measures() -> None:
    rows = records.rows(STORM)
    assert rows["the plugin's share of the start time, %"] == pytest.approx(2.0)
    assert (rows["created to Running: median, s"], rows["created to Running: last, s"]) == (5.0, 6.0)


def test_pod_that_kubernetes_has_held_back_counts_apart() -> None:
    rows = records.rows(dataclasses.replace(STORM, warnings={"b": [FORBIDDEN]}))
    assert rows["pods held back by Kubernetes"] == 1
    assert rows["the plugin's share of the start time, %"] == pytest.approx(5.0)
    assert not records.failures(dataclasses.replace(STORM, warnings={"b": [FORBIDDEN]}))


def test_complete_storm_has_no_failure() -> None:
    assert not records.failures(STORM)


@pytest.mark.parametrize(
    "changes",
    [
        {"answered": STORM.answered[:-1], "kubelet": {"Allocate": (1, 0.1)}},
        {"kubelet": {"Allocate": (3, 0.2)}},
        {"warnings": {"a": ["FailedMount: no volume"]}},
        {"problems": ["a was restarted"]},
    ],
)
def test_each_kind_of_failure_is_one(changes: dict[str, Any]) -> None:
    assert len(records.failures(dataclasses.replace(STORM, **changes))) == 1
