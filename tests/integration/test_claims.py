"""Claims prepared and unprepared for the kubelet, on real files."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.framework.apiserver import paths
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.credentials import StaticCredentials
from aosp_plugin.framework.apiserver.errors import (
    ApiUnavailableError,
    ForbiddenError,
    NotFoundError,
    Request,
    TooManyRequestsError,
)
from aosp_plugin.framework.apiserver.transport import ApiLimits
from aosp_plugin.framework.dra.claim_source import ApiClaimSource
from aosp_plugin.framework.dra.interfaces import ClaimReference
from aosp_plugin.testing.apiserver import ApiServer, Cut, Garbage, Hang, Refuse, Throttle
from tests.claims import DRIVER, TIMINGS, Node, claim_object, make_node, parameters, place, reference

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aosp_plugin.framework.dra.claims import Claims
    from aosp_plugin.framework.dra.interfaces import PreparedDevice
    from aosp_plugin.testing.apiserver.faults import Fault

SECONDS = 30.0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


@pytest.fixture
async def claims(node: Node) -> AsyncIterator[Claims]:
    async with node.claims() as claims:
        yield claims


async def devices(claims: Claims, claim: ClaimReference, seconds: float = SECONDS) -> list[PreparedDevice]:
    """Prepare a claim, which has to succeed."""
    result = (await claims.prepare([claim], seconds))[claim.uid]
    assert not isinstance(result, str), result
    return list(result)


async def error(claims: Claims, claim: ClaimReference, seconds: float = SECONDS) -> str:
    """Prepare a claim, which has to fail."""
    result = (await claims.prepare([claim], seconds))[claim.uid]
    assert isinstance(result, str)
    return result


async def unprepare(claims: Claims, *uids: str, seconds: float = SECONDS) -> dict[str, str]:
    return dict(await claims.unprepare([reference(uid) for uid in uids], seconds))


def nothing_left(node: Node, claims: Claims) -> bool:
    """Return whether no trace of any claim is left."""
    return not node.specs and not node.backend.mounted and not claims.host.records


# -- prepare and unprepare


async def test_prepare_returns_the_devices_with_their_requests_and_cdi_names(node: Node, claims: Claims) -> None:
    node.source.objects["claim-a"] = claim_object("a", {"main": ["phone1"], "second/fast": ["phone2", "phone3"]})
    prepared = await devices(claims, reference("a"))
    pool = place("phone1")["pool"]
    assert [tuple(device) for device in prepared] == [
        (("main",), pool, "phone1", (f"{DRIVER}/claim=a-phone1",)),
        (("second",), pool, "phone2", (f"{DRIVER}/claim=a-phone2",)),
        (("second",), pool, "phone3", (f"{DRIVER}/claim=a-phone3",)),
    ]
    assert node.backend.mounted == {"phone1", "phone2", "phone3"}
    assert set(claims.prepared) == {"a"}


async def test_the_spec_has_the_edits_of_each_device(node: Node, claims: Claims) -> None:
    await devices(claims, node.source.add("a", "phone1", "phone2"))
    spec = json.loads(node.spec("a").read_text())
    assert (spec["kind"], spec["cdiVersion"]) == (f"{DRIVER}/claim", "0.6.0")
    by_name = {device["name"]: device["containerEdits"] for device in spec["devices"]}
    assert by_name["a-phone2"]["env"] == ["PHONE=phone2"]
    assert by_name["a-phone2"]["mounts"][0]["containerPath"] == "/phones/phone2"


async def test_a_new_claim_gets_fresh_devices(node: Node, claims: Claims) -> None:
    (node.backend.directory / "phone1").mkdir()
    (node.backend.directory / "phone1" / "old").touch()
    await devices(claims, node.source.add("a", "phone1"))
    assert not (node.backend.directory / "phone1" / "old").exists()


async def test_a_second_prepare_changes_no_device_and_writes_the_spec_again(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    first = await devices(claims, claim)
    node.spec("a").unlink()
    (node.backend.directory / "phone1" / "in-use").touch()
    assert await devices(claims, claim) == first
    assert node.specs == {"a"}
    assert (node.backend.directory / "phone1" / "in-use").exists()


async def test_two_pods_that_share_a_claim_prepare_it_at_the_same_time(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    first, second = await asyncio.gather(devices(claims, claim), devices(claims, claim))
    assert first == second
    assert node.backend.calls.count("unprepare phone1") == 1


async def test_a_prepared_claim_is_answered_without_the_api_server(node: Node) -> None:
    claim = node.source.add("a", "phone1")
    async with node.claims() as claims:
        first = await devices(claims, claim)
    node.source.down = True
    async with node.claims(timings=TIMINGS._replace(verify=0.05)) as claims:
        assert await devices(claims, claim) == first


async def test_a_claim_that_was_allocated_again_gets_its_new_devices(node: Node, claims: Claims) -> None:
    await devices(claims, node.source.add("a", "phone1"))
    (device,) = await devices(claims, node.source.add("a", "phone2"))
    assert device.device == "phone2"
    assert node.backend.mounted == {"phone2"}


async def test_unprepare_removes_everything_without_the_claim_object(node: Node, claims: Claims) -> None:
    await devices(claims, node.source.add("a", "phone1"))
    node.source.remove("a")
    node.source.down = True
    assert await unprepare(claims, "a") == {"a": ""}
    assert nothing_left(node, claims)


async def test_unprepare_of_an_unknown_claim_succeeds(node: Node, claims: Claims) -> None:
    assert await unprepare(claims, "unknown", "other") == {"unknown": "", "other": ""}


async def test_a_failed_unprepare_keeps_the_record_and_can_be_repeated(node: Node, claims: Claims) -> None:
    await devices(claims, node.source.add("a", "phone1"))
    node.backend.fail = {"unprepare"}
    assert "unprepare fails" in (await unprepare(claims, "a"))["a"]
    assert set(claims.prepared) == {"a"}
    node.backend.fail = set()
    assert await unprepare(claims, "a") == {"a": ""}
    assert nothing_left(node, claims)


async def test_one_call_has_a_result_for_each_claim(node: Node, claims: Claims) -> None:
    good, bad = node.source.add("a", "phone1"), reference("b")
    results = await claims.prepare([good, bad], SECONDS)
    assert set(results) == {"a", "b"}
    assert "not found" in str(results["b"])
    assert not isinstance(results["a"], str)
    assert await claims.prepare([], SECONDS) == {}


async def test_the_observer_counts_claims(node: Node, claims: Claims) -> None:
    await devices(claims, node.source.add("a", "phone1"))
    await error(claims, reference("b"))
    await unprepare(claims, "a")
    assert [event for event in node.observer.events if event[0] != "claims"] == [
        ("prepared", "ok"),
        ("prepared", "failed"),
        ("unprepared", "ok"),
    ]
    assert [event[1] for event in node.observer.events if event[0] == "claims"][-1] == 0


# -- what is refused


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"metadata": {"uid": "other"}}, "replaced by another one of the same name, with UID other"),
        ({"status": {}}, "is not allocated"),
        ({"status": {"allocation": {"devices": {}}}}, f"no device of {DRIVER}"),
    ],
)
async def test_a_claim_that_is_not_allocated_here_is_refused(
    node: Node, claims: Claims, change: dict[str, Any], text: str
) -> None:
    claim = node.source.add("a", "phone1")
    node.source.objects["claim-a"].update(change)
    assert text in await error(claims, claim)
    assert nothing_left(node, claims)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"device": "phone99"}, "device phone99 of pool node-1/00000 does not exist on this node"),
        ({"pool": "node-2/00000"}, "of pool node-2/00000 does not exist on this node"),
        ({"driver": "gpu.example.com"}, f"no device of {DRIVER}"),
        ({"adminAccess": True}, "adminAccess is not supported"),
        ({"shareID": "5a6b"}, "shareID"),
    ],
)
async def test_a_result_that_cannot_be_served_is_refused(
    node: Node, claims: Claims, change: dict[str, Any], text: str
) -> None:
    claim = node.source.add("a", "phone1")
    node.source.objects["claim-a"]["status"]["allocation"]["devices"]["results"][0].update(change)
    assert text in await error(claims, claim)
    assert nothing_left(node, claims)


async def test_results_of_other_drivers_are_ignored(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    results = node.source.objects["claim-a"]["status"]["allocation"]["devices"]["results"]
    results.append({"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "phone2"})
    assert [device.device for device in await devices(claims, claim)] == ["phone1"]


async def test_a_uid_that_could_be_a_path_is_refused(node: Node, claims: Claims) -> None:
    assert "UID '../x'" in await error(claims, reference("../x"))
    assert await unprepare(claims, "../x") == {"../x": ""}


async def test_an_error_of_the_backend_is_the_answer_and_is_rolled_back(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1", config=[parameters("FromClaim", {"broken": 1})])
    assert await error(claims, claim) == "parameters: broken is not a key"
    assert nothing_left(node, claims)


async def test_parameters_of_the_class_come_before_those_of_the_claim(node: Node, claims: Claims) -> None:
    config = [
        parameters("FromClaim", {"a": 2}),
        parameters("FromClass", {"a": 1}),
        parameters("FromClaim", {"a": 3}, "phone"),
        parameters("FromClaim", {"a": 4}, "other"),
        parameters("FromClaim", {"a": 5}, driver="gpu.example.com"),
    ]
    await devices(claims, node.source.add("a", "phone1", config=config))
    assert [(each.source, each.content["a"]) for each in node.backend.parameters[-1]] == [
        ("class", 1),
        ("claim", 2),
        ("claim", 3),
    ]


# -- the API server


async def test_errors_of_the_api_server_that_may_pass_are_retried(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    node.source.errors = [ApiUnavailableError(None, "refused"), TooManyRequestsError(None, "429")]
    await devices(claims, claim)
    assert len(node.source.requests) == 3


async def test_missing_rights_are_reported_at_once(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    node.source.errors = [ForbiddenError(Request("get", "/claims"), "403 Forbidden")]
    assert "403 Forbidden" in await error(claims, claim)
    assert len(node.source.requests) == 1


async def test_an_api_server_that_does_not_answer_is_an_error_in_time(node: Node, claims: Claims) -> None:
    node.source.down = True
    assert "connection refused" in await error(claims, reference("a"), seconds=0.3)


async def test_a_prepare_before_the_first_scan_waits_for_it(node: Node) -> None:
    async with node.claims(scanned=False) as claims:
        task = asyncio.create_task(devices(claims, node.source.add("a", "phone1")))
        await claims._worker.run(lambda: None)
        claims._inventory.publish(node.backend.devices())
        assert [device.device for device in await task] == ["phone1"]


async def test_a_prepare_without_any_scan_is_an_error_in_time(node: Node) -> None:
    async with node.claims(scanned=False) as claims:
        assert "not been scanned" in await error(claims, node.source.add("a", "phone1"), seconds=0.2)


async def test_a_404_that_is_not_the_api_servers_does_not_end_a_prepared_claim(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    first = await devices(claims, claim)
    node.source.errors = [NotFoundError(None, "404 page not found", status=404)]
    assert await devices(claims, claim) == first


@contextlib.asynccontextmanager
async def api_claims(node: Node, server: ApiServer) -> AsyncIterator[Claims]:
    """Run claims with the client of an API server, which waits for an answer for a moment only."""
    async with (
        ApiClient(StaticCredentials(server.url), limits=ApiLimits(request=0.2)) as client,
        node.claims(source=ApiClaimSource(client)) as claims,
    ):
        yield claims


async def test_a_name_that_is_no_part_of_a_path_is_refused(node: Node) -> None:
    async with ApiServer() as server, api_claims(node, server) as claims:
        assert "not a valid name" in await error(claims, ClaimReference("default", "../secrets", "a"))


@pytest.mark.parametrize(
    "fault", [Hang(), Garbage(), Cut(), Throttle(retry_after=0.01), Refuse(503), Refuse(401)], ids=repr
)
async def test_a_claim_is_prepared_when_the_api_server_has_recovered(node: Node, fault: Fault) -> None:
    async with ApiServer() as server, api_claims(node, server) as claims:
        body = {**claim_object("", {"phone": ["phone1"]}), "metadata": {"name": "claim-a"}}
        created = server.objects.create(paths.resource_claims("default"), body)
        added = server.faults.add(fault, verb="get", resource="resourceclaims", times=2)
        claim = ClaimReference("default", "claim-a", created["metadata"]["uid"])
        assert [device.device for device in await devices(claims, claim)] == ["phone1"]
        assert added.hits == 2


async def test_missing_rights_are_named(node: Node) -> None:
    async with ApiServer() as server, api_claims(node, server) as claims:
        server.faults.add(Refuse(403), verb="get", resource="resourceclaims")
        text = await error(claims, reference("a"))
        assert "requires the verb get on resourceclaims of API group" in text


async def test_a_claim_that_does_not_exist_is_an_error_at_once(node: Node) -> None:
    async with ApiServer() as server, api_claims(node, server) as claims:
        assert "404 NotFound" in await error(claims, reference("a"))
        assert server.count("get", "resourceclaims") == 1


# -- conflicts


async def test_a_device_of_another_claim_is_waited_for(node: Node, claims: Claims) -> None:
    await devices(claims, node.source.add("a", "phone1"))
    waiting = asyncio.create_task(devices(claims, node.source.add("b", "phone1")))
    await node.source.requested("claim-a", 2)
    assert not waiting.done()
    await unprepare(claims, "a")
    assert [device.device for device in await waiting] == ["phone1"]
    assert ("waited",) in node.observer.events


async def test_a_device_that_is_not_released_in_time_is_refused(node: Node) -> None:
    async with node.claims(timings=TIMINGS._replace(conflict=0.2)) as claims:
        first = await devices(claims, node.source.add("a", "phone1"))
        text = await error(claims, node.source.add("b", "phone1", "phone2"))
        assert "device phone1 is still prepared for claim default/claim-a (UID a)" in text
        assert node.backend.mounted == {"phone1"}
        assert await devices(claims, reference("a")) == first


@pytest.mark.parametrize("change", ["deleted", "replaced", "deallocated", "moved"])
async def test_a_claim_that_is_gone_is_unprepared_for_the_next_one(node: Node, claims: Claims, change: str) -> None:
    await devices(claims, node.source.add("a", "phone1"))
    if change == "deleted":
        node.source.remove("a")
    elif change == "replaced":
        node.source.objects["claim-a"]["metadata"]["uid"] = "c"
    elif change == "deallocated":
        node.source.objects["claim-a"]["status"] = {}
    else:
        node.source.add("a", "phone2")
    await devices(claims, node.source.add("b", "phone1"))
    assert set(claims.prepared) == {"b"}
    assert ("reconciled", "claim", "ok") in node.observer.events


async def test_a_claim_is_not_unprepared_while_the_api_server_is_away(node: Node) -> None:
    async with node.claims(timings=TIMINGS._replace(conflict=0.3)) as claims:
        await devices(claims, node.source.add("a", "phone1"))
        claim = node.source.add("b", "phone1")
        node.source.remove("a")
        task = asyncio.create_task(error(claims, claim))
        await node.source.requested("claim-b")
        node.source.down = True
        assert "still prepared for claim" in await task


async def test_a_claim_with_one_device_twice_is_refused(node: Node, claims: Claims) -> None:
    node.source.objects["claim-a"] = claim_object("a", {"x": ["phone1"], "y": ["phone1"]})
    assert "allocated twice, for the requests x and y" in await error(claims, reference("a"))


# -- calls that end early


async def test_unprepare_cancels_a_prepare_that_waits(node: Node, claims: Claims) -> None:
    await devices(claims, node.source.add("a", "phone1"))
    waiting = asyncio.create_task(error(claims, node.source.add("b", "phone1")))
    await node.source.requested("claim-a", 2)
    assert await unprepare(claims, "b") == {"b": ""}
    assert "was unprepared before" in await waiting
    await unprepare(claims, "a")
    assert nothing_left(node, claims)


async def test_a_prepare_that_hangs_is_an_error_in_time_and_its_result_belongs_to_the_next(
    node: Node, claims: Claims
) -> None:
    claim = node.source.add("a", "phone1")
    node.backend.hang = {"prepare"}
    assert "timed out" in await error(claims, claim, seconds=0.3)
    node.backend.hang = set()
    node.backend.resume.set()
    await devices(claims, claim)
    assert node.backend.mounted == {"phone1"}
    assert node.specs == {"a"}


async def test_a_prepare_that_hangs_does_not_survive_its_unprepare(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    node.backend.hang = {"prepare"}
    preparing = asyncio.create_task(error(claims, claim))
    await asyncio.to_thread(node.backend.hanging.wait)
    unpreparing = asyncio.create_task(unprepare(claims, "a"))
    assert "was unprepared before" in await preparing
    node.backend.resume.set()
    assert await unpreparing == {"a": ""}
    assert nothing_left(node, claims)


async def test_a_cancelled_call_leaves_no_claim_half_prepared(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    node.backend.hang = {"prepare"}
    task = asyncio.create_task(claims.prepare([claim], SECONDS))
    await asyncio.to_thread(node.backend.hanging.wait)
    other = asyncio.create_task(claims.prepare([node.source.add("b", "phone2")], SECONDS))
    await asyncio.sleep(0)  # its call waits behind the other one
    task.cancel()
    other.cancel()
    await asyncio.wait({task, other})
    node.backend.hang = set()
    node.backend.resume.set()
    assert await claims._worker.run(lambda: dict(claims.host.records)) == dict(claims.prepared)
    assert set(claims.prepared) == {"a"}
    assert node.backend.mounted == {"phone1"}


# -- health


async def test_health_has_the_devices_of_prepared_claims(node: Node, claims: Claims) -> None:
    await devices(claims, node.source.add("a", "phone1", "phone2"))
    node.backend.ids.remove("phone2")
    claims._inventory.publish(node.backend.devices())
    assert [(each.device, each.healthy, each.message) for each in claims.health()] == [
        ("phone1", True, ""),
        ("phone2", False, "the device does not exist any more"),
    ]


async def test_a_change_of_the_prepared_claims_is_notified(node: Node, claims: Claims) -> None:
    superseded = claims.superseded
    await devices(claims, node.source.add("a", "phone1"))
    async with asyncio.timeout(SECONDS):
        await superseded.wait()
