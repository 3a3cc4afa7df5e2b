"""Claims prepared and unprepared for the kubelet, on real files, also while the API server fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.protocol import ApiUnavailableError, NotFoundError
from aosp_plugin.framework.dra.api_claims import get_claim
from aosp_plugin.framework.dra.claim_records import ClaimReference
from aosp_plugin.framework.dra.claims import Claims
from kubelet_standin.apiserver import ApiServer, Cut, Garbage, Hang, Refuse, Throttle
from kubelet_standin.apiserver.faults import Fault
from tests.claims import (
    DRIVER,
    TIMINGS,
    Node,
    claim_object,
    make_node,
    nothing_left,
    parameters,
    place,
    prepared_devices,
    reference,
    refusal,
    unprepare,
)
from tests.static_credentials import StaticCredentials
from tests.support import PATIENCE, causes, counted


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


@pytest.fixture
async def claims(node: Node) -> AsyncIterator[Claims]:
    async with node.claims() as claims:
        yield claims


# -- prepare and unprepare


async def test_prepare_returns_the_devices_with_their_requests_and_cdi_names(node: Node, claims: Claims) -> None:
    node.source.objects["claim-a"] = claim_object("a", {"main": ["phone1"], "second/fast": ["phone2", "phone3"]})
    prepared = await prepared_devices(claims, reference("a"))
    pool = place("phone1")["pool"]
    assert [(*each.request_names, each.pool_name, each.device_name, *each.cdi_device_ids) for each in prepared] == [
        ("main", pool, "phone1", f"{DRIVER}/claim=a-phone1"),
        ("second", pool, "phone2", f"{DRIVER}/claim=a-phone2"),
        ("second", pool, "phone3", f"{DRIVER}/claim=a-phone3"),
    ]
    assert node.backend.mounted == {"phone1", "phone2", "phone3"}
    assert set(claims.prepared) == {"a"}


@pytest.mark.parametrize(
    "error", [None, ApiUnavailableError(None, "away"), NotFoundError(None, "404 page not found", status=404)], ids=str
)
async def test_a_second_prepare_changes_no_device_and_writes_the_spec_again(
    node: Node, error: Exception | None
) -> None:
    """Also without the API server, or if a proxy answers in its place. Only it says that the claim does not exist."""
    claim = node.source.add("a", "phone1")
    async with node.claims() as claims:
        first = await prepared_devices(claims, claim)
    (node.backend.directory / "phone1" / "in-use").touch()
    async with node.claims(timings=TIMINGS._replace(claim_verify=0.05)) as claims:
        await claims.repair()
        node.source.errors = [error] * 1000 if error else []
        node.spec("a").unlink()
        assert await prepared_devices(claims, claim) == first
        assert node.specs == {"a"}
        assert (node.backend.directory / "phone1" / "in-use").exists()
        node.source.errors.clear()
        node.source.remove("a")
        assert "404 NotFound" in await refusal(claims, claim)
        assert set(claims.prepared) == {"a"}


async def test_unprepare_removes_everything_without_the_claim_object(node: Node, claims: Claims) -> None:
    """If it fails, the record stays, and it can be repeated."""
    await prepared_devices(claims, node.source.add("a", "phone1"))
    node.source.remove("a")
    node.source.down = True
    node.backend.fail = {"unprepare"}
    assert "unprepare fails" in (await unprepare(claims, "a"))["a"]
    assert set(claims.prepared) == {"a"}
    node.backend.fail = set()
    assert await unprepare(claims, "a") == {"a": ""}
    assert nothing_left(node, claims)


async def test_unprepare_of_an_unknown_claim_succeeds(claims: Claims) -> None:
    """Also if its UID could be a path, which Prepare refuses."""
    assert "UID '../x'" in await refusal(claims, reference("../x"))
    assert await unprepare(claims, "unknown", "../x") == {"unknown": "", "../x": ""}


# -- what is refused

TWICE = claim_object("a", {"x": ["phone1"], "y": ["phone1"]})["status"]


@pytest.mark.parametrize(
    ("claim", "result", "config", "text"),
    [
        ({"metadata": {"uid": "other"}}, {}, {}, "replaced by another one of the same name, with UID other"),
        ({"status": {}}, {}, {}, "is not allocated"),
        ({"status": {"allocation": {"devices": {}}}}, {}, {}, f"no device of {DRIVER}"),
        ({"status": TWICE}, {}, {}, "allocated twice, for the requests x and y"),
        ({}, {"device": "phone99"}, {}, "device phone99 of pool node-1/00000 does not exist on this node"),
        ({}, {"pool": "node-2/00000"}, {}, "of pool node-2/00000 does not exist on this node"),
        ({}, {"driver": "gpu.example.com"}, {}, f"no device of {DRIVER}"),
        ({}, {"adminAccess": True}, {}, "adminAccess is not supported"),
        ({}, {"shareID": "5a6b"}, {}, "shareID"),
        ({}, {}, {"broken": 1}, "parameters: broken is not a key"),
        ({}, {}, {"environment": {"A": "x" * 70_000}}, "the parameters for phone.aosp.io are too long"),
    ],
)
async def test_a_claim_that_cannot_be_served_is_refused(
    node: Node, claims: Claims, claim: dict[str, Any], result: dict[str, Any], config: dict[str, Any], text: str
) -> None:
    """Nothing is left of it, also if the backend has begun to prepare it."""
    named = node.source.add("a", "phone1", config=[parameters("FromClaim", config)])
    found = node.source.objects["claim-a"]
    found["status"]["allocation"]["devices"]["results"][0].update(result)
    found.update(claim)
    assert text in await refusal(claims, named)
    assert nothing_left(node, claims)


async def test_what_a_claim_asks_for_in_vain_is_no_failure_of_the_node(node: Node, claims: Claims) -> None:
    """A tenant can write such claims as often as he likes, and must not raise the alert about failures."""
    asking = node.source.add("a", "phone1")
    results = node.source.objects["claim-a"]["status"]["allocation"]["devices"]["results"]
    results[0]["adminAccess"] = True
    configured = node.source.add("b", "phone1", config=[parameters("FromClaim", {"broken": 1})])
    deleted = reference("c")
    for claim in (asking, configured, deleted):
        await refusal(claims, claim)
    assert counted(node.metrics, "claim_prepares_total", result="refused") == 3
    assert counted(node.metrics, "claim_prepares_total", result="failed") == 0
    node.source.down = True
    await refusal(claims, node.source.add("d", "phone2"), 0.1)
    assert counted(node.metrics, "claim_prepares_total", result="failed") == 1


async def test_parameters_of_the_class_come_before_those_of_the_claim(node: Node, claims: Claims) -> None:
    config = [
        parameters("FromClaim", {"a": 2}),
        parameters("FromClass", {"a": 1}),
        parameters("FromClaim", {"a": 3}, "phone"),
        parameters("FromClaim", {"a": 4}, "other"),
        parameters("FromClaim", {"a": 5}, driver="gpu.example.com"),
    ]
    await prepared_devices(claims, node.source.add("a", "phone1", config=config))
    assert [(each.source, each.content["a"]) for each in node.backend.parameters[-1]] == [
        ("class", 1),
        ("claim", 2),
        ("claim", 3),
    ]


# -- health


async def test_a_change_of_the_prepared_claims_is_a_change_of_health(node: Node, claims: Claims) -> None:
    _, (claims_changed, _) = claims.health()
    await prepared_devices(claims, node.source.add("a", "phone1"))
    async with asyncio.timeout(PATIENCE):
        await claims_changed.wait()


# -- conflicts


async def test_a_device_of_another_claim_is_waited_for(node: Node) -> None:
    """The claim that waits is named until it is prepared."""
    async with node.claims(timings=TIMINGS._replace(claim_slow=0.0)) as claims:
        await prepared_devices(claims, node.source.add("a", "phone1"))
        assert causes(claims) == ""
        waiting = asyncio.create_task(prepared_devices(claims, node.source.add("b", "phone1")))
        await node.source.requested("claim-a", 2)
        assert not waiting.done()
        assert causes(claims) == "claim b is not prepared after 0 s"
        await unprepare(claims, "a")
        assert [device.device_name for device in await waiting] == ["phone1"]
        assert causes(claims) == ""
        assert counted(node.metrics, "claim_device_wait_seconds_count") == 1


async def test_a_release_ends_the_wait_although_the_api_server_does_not_answer(node: Node) -> None:
    async with node.claims(timings=TIMINGS._replace(claim_conflict=3600.0)) as claims:
        await prepared_devices(claims, node.source.add("a", "phone1"))
        node.source.silent = "claim-a"
        waiting = asyncio.create_task(claims.prepare(node.source.add("b", "phone1"), 3600.0))
        await node.source.requested("claim-a", 2)
        for number in range(2, 6):  # which end no request about another claim
            await prepared_devices(claims, node.source.add(f"c{number}", f"phone{number}"))
        await unprepare(claims, "a")
        async with asyncio.timeout(PATIENCE):
            assert [device.device_name for device in await waiting] == ["phone1"]


async def test_a_claim_that_is_gone_is_unprepared_for_the_next_one(node: Node, claims: Claims) -> None:
    await prepared_devices(claims, node.source.add("a", "phone1"))
    node.source.remove("a")
    await prepared_devices(claims, node.source.add("b", "phone1"))
    assert set(claims.prepared) == {"b"}
    assert node.repairs("claim") == 1


# -- calls that end early


async def test_a_cancelled_call_that_waits_prepares_nothing(node: Node, claims: Claims) -> None:
    """The kubelet cancels it before it unprepares the claim."""
    await prepared_devices(claims, node.source.add("a", "phone1"))
    waiting = asyncio.create_task(prepared_devices(claims, node.source.add("b", "phone1")))
    await node.source.requested("claim-a", 2)
    waiting.cancel()
    assert await unprepare(claims, "b", "a") == {"b": "", "a": ""}
    await asyncio.wait({waiting})
    assert nothing_left(node, claims)
    assert counted(node.metrics, "claim_prepares_total", result="failed") == 0  # a tenant can delete pods that wait


async def test_a_prepare_that_hangs_is_an_error_in_time_and_its_result_belongs_to_the_next(
    node: Node, claims: Claims
) -> None:
    claim = node.source.add("a", "phone1")
    node.backend.hang = {"prepare"}
    assert "timed out" in await refusal(claims, claim, seconds=0.3)
    node.backend.hang = set()
    node.backend.resume.set()
    await prepared_devices(claims, claim)
    assert node.backend.mounted == {"phone1"}
    assert node.specs == {"a"}


async def test_a_prepare_that_hangs_does_not_survive_its_unprepare(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    node.backend.hang = {"prepare"}
    preparing = asyncio.create_task(prepared_devices(claims, claim))
    await asyncio.to_thread(node.backend.hanging.wait)
    unpreparing = asyncio.create_task(unprepare(claims, "a"))
    node.backend.resume.set()
    assert await unpreparing == {"a": ""}
    await preparing
    assert nothing_left(node, claims)


async def test_a_cancelled_call_leaves_no_claim_half_prepared(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    node.backend.hang = {"prepare"}
    task = asyncio.create_task(claims.prepare(claim, PATIENCE))
    await asyncio.to_thread(node.backend.hanging.wait)
    other = asyncio.create_task(claims.prepare(node.source.add("b", "phone2"), PATIENCE))
    await asyncio.sleep(0)  # its call waits behind the other one
    task.cancel()
    other.cancel()
    await asyncio.wait({task, other})
    node.backend.hang = set()
    node.backend.resume.set()
    await claims.repair()  # behind the calls that were waiting
    assert set(claims.prepared) == {"a"}
    assert node.backend.mounted == {"phone1"}


# -- while the API server fails


async def test_a_prepare_before_the_first_scan_waits_for_it(node: Node) -> None:
    async with node.claims(scanned=False) as claims:
        task = asyncio.create_task(prepared_devices(claims, node.source.add("a", "phone1")))
        await claims._worker.run(lambda: None)
        claims._inventory.publish(node.backend.scan())
        assert [device.device_name for device in await task] == ["phone1"]


@pytest.mark.parametrize(
    "fault", [Hang(), Garbage(), Cut(), Throttle(retry_after=0.01), Refuse(503), Refuse(401)], ids=repr
)
async def test_a_claim_is_prepared_when_the_api_server_has_recovered(
    node: Node, api_server: ApiServer, fault: Fault
) -> None:
    """The client waits for an answer for a moment only."""
    body = {**claim_object("", {"phone": ["phone1"]}), "metadata": {"name": "claim-a"}}
    created = api_server.objects.create(protocol.resource_claims("default"), body)
    added = api_server.faults.add(fault, verb="get", resource="resourceclaims", times=2)
    claim = ClaimReference("default", "claim-a", created["metadata"]["uid"])
    client = ApiClient(StaticCredentials(api_server.url), limits=ApiLimits(request=0.2))
    async with contextlib.aclosing(client), node.claims(get_claim=partial(get_claim, client)) as claims:
        assert [device.device_name for device in await prepared_devices(claims, claim)] == ["phone1"]
    assert added.hits == 2
