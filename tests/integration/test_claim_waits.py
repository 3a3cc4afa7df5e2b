"""Devices that another claim has, and calls that end early."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aosp_plugin.framework.dra.claims import Claims
from tests.claims import (
    PATIENCE,
    TIMINGS,
    Node,
    claim_object,
    make_node,
    nothing_left,
    prepared_devices,
    reference,
    refusal,
    unprepare,
)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


@pytest.fixture
async def claims(node: Node) -> AsyncIterator[Claims]:
    async with node.claims() as claims:
        yield claims


# -- conflicts


async def test_a_device_of_another_claim_is_waited_for(node: Node, claims: Claims) -> None:
    await prepared_devices(claims, node.source.add("a", "phone1"))
    waiting = asyncio.create_task(prepared_devices(claims, node.source.add("b", "phone1")))
    await node.source.requested("claim-a", 2)
    assert not waiting.done()
    await unprepare(claims, "a")
    assert [device.device for device in await waiting] == ["phone1"]
    assert ("waited",) in node.observer.events


async def test_a_release_ends_the_wait_although_the_api_server_does_not_answer(node: Node) -> None:
    async with node.claims(timings=TIMINGS._replace(claim_conflict=3600.0)) as claims:
        await prepared_devices(claims, node.source.add("a", "phone1"))
        node.source.silent = "claim-a"
        waiting = asyncio.create_task(claims.prepare(node.source.add("b", "phone1"), 3600.0))
        await node.source.requested("claim-a", 2)
        await unprepare(claims, "a")
        async with asyncio.timeout(PATIENCE):
            assert [device.device for device in await waiting] == ["phone1"]


async def test_a_claim_that_waits_is_named_until_it_is_prepared(node: Node) -> None:
    async with node.claims(timings=TIMINGS._replace(claim_slow=0.0)) as claims:
        await prepared_devices(claims, node.source.add("a", "phone1"))
        assert claims.notice == ""
        waiting = asyncio.create_task(prepared_devices(claims, node.source.add("b", "phone1")))
        await node.source.requested("claim-a", 2)
        assert claims.notice == "claim b is not prepared after 0 s"
        await unprepare(claims, "a")
        await waiting
        assert claims.notice == ""


async def test_a_claim_that_is_gone_is_unprepared_for_the_next_one(node: Node, claims: Claims) -> None:
    await prepared_devices(claims, node.source.add("a", "phone1"))
    node.source.remove("a")
    await prepared_devices(claims, node.source.add("b", "phone1"))
    assert set(claims.prepared) == {"b"}
    assert ("reconciled", "claim", "ok") in node.observer.events


async def test_a_claim_with_one_device_twice_is_refused(node: Node, claims: Claims) -> None:
    node.source.objects["claim-a"] = claim_object("a", {"x": ["phone1"], "y": ["phone1"]})
    assert "allocated twice, for the requests x and y" in await refusal(claims, reference("a"))


# -- calls that end early


async def test_unprepare_cancels_a_prepare_that_waits(node: Node, claims: Claims) -> None:
    await prepared_devices(claims, node.source.add("a", "phone1"))
    waiting = asyncio.create_task(refusal(claims, node.source.add("b", "phone1")))
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
