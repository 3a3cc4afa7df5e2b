"""What is computed from the records of a boot storm, whose errors would be wrong figures."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.e2e.cluster.figures.results import Results
from tests.e2e.cluster.storm import evaluation, events, histograms, processors, recorder, render, requests
from tests.e2e.cluster.storm.evaluation import Storm
from tests.e2e.cluster.storm.histograms import Series, Total
from tests.e2e.cluster.storm.requests import Request

BY_KUBELET = Series("kubelet_device_plugin_alloc_duration_seconds", frozenset({("resource_name", "aosp.io/found")}))
BY_PLUGIN = Series("aosp_plugin_allocation_duration_seconds", frozenset({("resource", "aosp.io/found")}))
STORM = Storm(
    count=2,
    expected=("Allocate",),
    created={"a": 100.0, "b": 101.0},
    reached={
        recorder.SCHEDULED: {"a": 100.5, "b": 101.5},
        recorder.SANDBOX: {"a": 102.0, "b": 105.0},
        recorder.RUNNING: {"a": 104.0, "b": 107.0},
        recorder.READY: {"a": 104.0, "b": 107.0},
    },
    deleted=200.0,
    gone={"a": 203.0, "b": 204.0},
    starting=[
        Request("GetPreferredAllocation", 101.0, 0.01),
        Request("Allocate", 102.0, 0.02),
        Request("GetPreferredAllocation", 102.5, 0.01),
        Request("Allocate", 103.0, 0.03),
    ],
    ending=[],
    processors={"kubelet": 3.0, processors.PLUGIN: 1.0, processors.BENCH: 5.0, processors.OTHERS: 7.0},
    kubelet={BY_KUBELET: Total(2, 0.18)},
    plugin={BY_PLUGIN: Total(2, 0.05)},
    warnings=[],
    called={},
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


def entry(time: str, **fields: Any) -> str:
    return json.dumps({"time": f"2026-01-01T00:00:{time}Z", "level": "debug", "message": "request answered", **fields})


def value(storm: Storm, row: str) -> float:
    return dict(evaluation.rows(storm))[row]


def test_requests_are_those_that_were_answered_after_a_time() -> None:
    log = "\n".join(
        [
            entry("01.000", rpc="Allocate", duration_ms=9),
            "Traceback (most recent call last):",
            entry("02.000", rpc="Allocate", duration_ms=0.5),
            entry("03.000", rpc="Allocate", duration_ms=7, message="request refused", level="warning"),
            entry("04.000", message="devices sent"),
        ]
    )
    (request,) = requests.parse(log, requests.parse(log, 0.0)[1].end)
    assert (request.rpc, request.seconds) == ("Allocate", 0.0005)
    assert len(requests.problems(log, request.end)) == 1


def test_time_with_two_requests_counts_once() -> None:
    calls = [Request("a", 2.0, 1.0), Request("b", 2.5, 1.0), Request("c", 2.2, 0.1), Request("d", 9.0, 1.0)]
    assert requests.busy_seconds(calls) == pytest.approx(2.5)
    assert requests.busy_seconds([]) == 0


def test_histograms_are_compared_by_name_and_labels() -> None:
    text = 'x_seconds_bucket{a="1",le="+Inf"} 3\nx_seconds_sum{a="1"} 1.5\nx_seconds_count{a="1"} 3\n'
    more = text + 'x_seconds_sum{a="b\\"}, {",c="2"} 0.25\nx_seconds_count{a="b\\"}, {",c="2"} 1\nother_count 7\n'
    observed = histograms.since(histograms.parse(text), histograms.parse(more))
    assert histograms.total(observed, "x_seconds") == Total(1, 0.25)
    assert histograms.total(observed, "x_seconds", c="2") == Total(1, 0.25)
    assert histograms.total(observed, "x_seconds", a="1") == Total(0, 0.0)
    assert histograms.total(histograms.parse(more), "x_seconds") == Total(4, 1.75)


def test_share_of_the_start_time_has_the_kubelets_seconds_of_what_it_measures() -> None:
    assert value(STORM, "plugin's share of the pods' start time, %") == pytest.approx(100 * (0.18 + 0.02) / (4 + 6))


def test_share_of_the_wall_time_is_from_the_first_creation_to_the_last_running_pod() -> None:
    assert value(STORM, "plugin's share of the storm's wall time, %") == pytest.approx(100 * 0.07 / 7)
    assert value(STORM, "pods a second") == pytest.approx(2 / 7)


def test_share_of_the_cpu_time_is_that_of_the_cluster_alone() -> None:
    assert value(STORM, "plugin's share of the cluster's CPU time, %") == pytest.approx(25)


def test_complete_storm_has_no_failure() -> None:
    assert evaluation.failures(STORM) == []
    assert value(STORM, "failures") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"warnings": [events.Warned("a", "FailedMount: no", 103.0)]},
        {"problems": ["a was restarted"]},
        {"starting": STORM.starting[:3], "kubelet": {BY_KUBELET: Total(1, 0)}, "plugin": {BY_PLUGIN: Total(1, 0)}},
        {"kubelet": {BY_KUBELET: Total(3, 0.2)}},
        {"plugin": {BY_PLUGIN: Total(1, 0.2)}},
    ],
    ids=["event", "problem", "request missing", "kubelet counts others", "metrics count others"],
)
def test_each_kind_of_failure_is_one(changes: dict[str, Any]) -> None:
    storm = dataclasses.replace(STORM, **changes)
    assert len(evaluation.failures(storm)) == 1
    assert value(storm, "failures") == 1


def test_pod_whose_claim_the_kubelet_was_not_allowed_to_read_counts_apart() -> None:
    """Its wait of a minute does not make the plugin's share look smaller."""
    storm = dataclasses.replace(
        STORM,
        reached={**STORM.reached, recorder.RUNNING: {"a": 175.0, "b": 107.0}},
        warnings=[events.Warned("a", FORBIDDEN, 101.0)],
        called={"a-phone-x": 171.0},
    )
    assert evaluation.failures(storm) == []
    assert value(storm, "pods held back by Kubernetes, without a call to the plugin") == 1
    assert value(storm, "plugin's share of the pods' start time, %") == pytest.approx(100 * (0.18 + 0.02) / 6)


@pytest.mark.parametrize(
    ("text", "called"),
    [
        (FORBIDDEN, {}),
        (FORBIDDEN, {"a-phone-x": 101.9}),
        (FORBIDDEN, {"another": 171.0}),
        (FORBIDDEN.replace("no relationship found", "no rule"), {"a-phone-x": 171.0}),
        (FORBIDDEN.replace("fetch ResourceClaim", "NodePrepareResources: fetch"), {"a-phone-x": 171.0}),
    ],
    ids=["never called", "called before the event's second was over", "called for another", "no right", "other step"],
)
def test_pod_is_not_held_back_by_kubernetes_alone_unless_message_and_log_show_it(
    text: str, called: dict[str, float]
) -> None:
    storm = dataclasses.replace(STORM, warnings=[events.Warned("a", text, 101.0)], called=called)
    assert len(evaluation.failures(storm)) == 1
    assert value(storm, "pods held back by Kubernetes, without a call to the plugin") == 0


def test_first_call_for_a_claim_is_the_earliest_that_the_plugin_has_received() -> None:
    received = {"message": "request received", "rpc": "NodePrepareResources"}
    log = "\n".join(
        [
            entry("01.000", **received, claim="default/a"),
            entry("02.000", **{**received, "rpc": "NodeUnprepareResources"}, claim="default/c"),
            entry("03.000", **received, claim="default/a,default/b"),
            entry("04.000", **{**received, "message": "request answered"}, claim="default/d", duration_ms=1),
            entry("05.000", **received, claim="default/b"),
        ]
    )
    calls = requests.first_calls(log, 0.0)
    assert calls["b"] - calls["a"] == pytest.approx(2.0)
    assert calls.keys() == {"a", "b"}
    assert requests.first_calls(log, calls["b"] + 1).keys() == {"b"}


def test_event_is_that_of_its_pod_with_the_time_of_its_last_occurrence() -> None:
    event = {
        "involvedObject": {"name": "a"},
        "reason": "FailedMount",
        "message": "no",
        "firstTimestamp": "1970-01-01T00:00:01Z",
        "lastTimestamp": "1970-01-01T00:01:40Z",
    }
    assert events.parse(event) == events.Warned("a", "FailedMount: no", 100.0)


def test_small_and_whole_values_are_readable_in_the_table() -> None:
    results = Results(["scene"])
    for number, measured in enumerate((0.034, 2.0, 2.25, 1234.5)):
        results.add(f"row {number}", "scene", measured)
    cells = [line.split("|")[2].strip() for line in results.table().splitlines()[2:]]
    assert cells == ["0.03", "2", "2.2", "1,234"]


VALUES = {
    "created to Running: median, s": {"no device": [40.0, 44.0, 42.0], "DRA": [50.0]},
    "created to Running: last, s": {"no device": [60.5], "DRA": [70.0]},
    "plugin's share of the pods' start time, %": {"DRA": [1.25]},
    "CPU of kubelet, s": {"no device": [5.0], "DRA": [6.0]},
}


def test_tables_have_the_median_of_the_rounds_in_a_column_for_each_scene() -> None:
    assert render.storms(VALUES).splitlines() == [
        "|  | no device | DRA |",
        "| --- | --- | --- |",
        "| created to Running: median, last, s | 42, 60.5 | 50, 70 |",
        "| **share of the start time, %** |  | 1.2 |",
    ]
    assert render.programs(VALUES).splitlines()[2:] == ["| kubelet | 5 | 6 |"]
