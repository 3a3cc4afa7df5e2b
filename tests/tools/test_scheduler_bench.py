"""The evaluation of ``make bench-scheduler``, and the objects of its fleet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.fleet import objects_pb2
from tests.e2e.scheduler import allocations, results, usage, used
from tests.e2e.scheduler.objects import Variant
from tests.e2e.scheduler.results import Run

METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 1000
apiserver_request_total{code="409",resource="pods",subresource="",verb="POST"} 2
apiserver_request_total{code="201",resource="pods",subresource="binding",verb="POST"} 1e+03
apiserver_request_total{code="200",resource="",subresource="/readyz",verb="GET"} 7
apiserver_request_terminations_total{code="500",resource="pods",verb="POST"} 9
"""
SHARE = "11111111-2222-3333-4444-555555555555"


def run(**values: Any) -> Run:
    times = [number / 10 for number in range(100)]
    programs = dict.fromkeys(results.PROGRAMS, 0.0)
    given: dict[str, Any] = {
        "kubernetes": "v1.37.1",
        "nodes": 1000,
        "phones": 120,
        "used": 0,
        "pods": 100,
        "variant": "claim",
        "limits": "raised",
        "percentage": 0,
        "load": 0.5,
        "single": [0.01, 0.02, 0.09],
        "created": 1.0,
        "bound": times,
        "latencies": times,
        "cpu": programs,
        "memory": programs,
        "peak": programs,
        "requests": {},
        "etcd": {},
        "phases": {},
    }
    return Run(**(given | values))


def test_rate_ignores_a_slow_beginning_and_end() -> None:
    middle = [100 + number / 50 for number in range(100)]

    assert results.middle_rate([*range(10), *middle[10:90], *range(1000, 1010)]) == pytest.approx(50)
    assert results.middle_rate([number / 4 for number in range(100)]) == pytest.approx(4)


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 2.0, 3.0], [5.0] * 20])
def test_rate_of_too_few_or_simultaneous_events_is_zero(times: list[float]) -> None:
    assert results.middle_rate(times) == 0


def cells(table: str) -> list[str]:
    """Return the cells of a table's first row."""
    return [cell.strip() for cell in table.splitlines()[2].strip("|").split(" | ")]


def test_cost_table_divides_by_the_pods_and_counts_no_reads() -> None:
    cpu = {"kube-apiserver": 2.0, "kube-scheduler": 1.0, "etcd": 0.5, "kube-controller-manager": 0.25}
    counted = {"POST pods": 100.0, "PATCH pods/status": 250.0, "GET pods": 900.0, "WATCH pods": 5.0}
    peak = {"kube-apiserver": 1390.4, "kube-scheduler": 300.0, "etcd": 200.0, "kube-controller-manager": 100.0}

    found = cells(results.cost_table([run(cpu=cpu, peak=peak, requests=counted, etcd={"puts": 350, "bytes": 640_000})]))

    assert found == [
        *("1,000 x 120", "claim", "raised"),
        *("38: 20.0, 10.0, 5.0, 2.5", "1,390, 300, 200, 100", "3.5", "6.4"),
    ]


def test_speed_table_reports_pods_that_were_not_bound() -> None:
    assert "only 100 of 1,000" in results.speed_table([run(pods=1000)])


def test_requests_are_counted_for_all_codes() -> None:
    assert usage.requests(METRICS) == {"POST pods": 1002, "POST pods/binding": 1000}


def pod_on(node: str) -> dict[str, Any]:
    return {"spec": {"nodeName": node}}


def claim_for(pool: str, *devices: str) -> dict[str, Any]:
    results = [{"pool": pool, "device": device} for device in devices]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def test_allocations_of_different_devices_are_right() -> None:
    pods = [pod_on("a"), pod_on("a"), pod_on("b")]
    claims = [claim_for("a/00000", "phone3"), claim_for("a/00000", "phone4"), claim_for("b/00000", "phone3")]

    assert allocations.problem(Variant.CLAIM, 5, 3, pods, claims) == ""


@pytest.mark.parametrize(
    ("variant", "pods", "claims", "expected"),
    [
        (Variant.DEVICE_PLUGIN, ["a", "a", "a"], [], "3 pods, but 2 free phones"),
        (Variant.CLAIM, ["a", "a"], [("a/0", "phone3")], "2 pods have 1 claims"),
        (Variant.CLAIM, ["a", "a"], [("a/0", "phone3"), ("a/0", "phone3")], "more often than 1 times"),
        (Variant.EXTENDED, ["a"], [("a/0", "phone3", "phone4")], "1 pods have 2 devices"),
        (Variant.CLAIM, ["a"], [("a/0", "phone2")], "phone2 belongs to another pod"),
        (Variant.CAPACITY, ["a", "b", "c"], [("a/0", "host")] * 3, "more often than 2 times"),
    ],
)
def test_wrong_allocations_are_found(variant: Variant, pods: list[str], claims: list[Any], expected: str) -> None:
    problem = allocations.problem(variant, 5, 3, [pod_on(node) for node in pods], [claim_for(*each) for each in claims])

    assert expected in problem


def claim_template() -> objects_pb2.ResourceClaim:
    """Return a claim for a share of a device, whose ID is a field that the plugin's messages do not have."""
    claim = objects_pb2.ResourceClaim()
    claim.metadata.owner_references.add()
    claim.status.reserved_for.add()
    share = bytes((9 << 3 | 2, len(SHARE))) + SHARE.encode()
    device = objects_pb2.AllocatedDevice(driver="phone.aosp.io", pool="other/00000", device="host")
    claim.status.allocation.devices.results.add().ParseFromString(device.SerializeToString() + share)
    return claim


def pod_named(name: str) -> objects_pb2.Pod:
    pod = objects_pb2.Pod()
    pod.metadata.name, pod.metadata.uid = name, f"uid-of-{name}"
    return pod


def test_claim_of_a_used_phone_belongs_to_its_pod() -> None:
    claim = used.claim_of(pod_named("used-7-70"), claim_template(), Variant.CLAIM, 7, 70)

    (result,) = claim.status.allocation.devices.results
    assert (result.pool, result.device) == ("phone-host-007.rack-0.example.com/00001", "phone70")
    assert claim.metadata.owner_references[0].uid == claim.status.reserved_for[0].uid == "uid-of-used-7-70"
