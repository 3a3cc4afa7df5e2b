"""Preparations of claims while the API server fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.credentials import Credentials
from aosp_plugin.framework.apiserver.protocol import (
    NotFoundError,
)
from aosp_plugin.framework.dra.claim_records import ClaimReference, get_claim
from aosp_plugin.framework.dra.claims import Claims
from kubelet_standin.apiserver import ApiServer, Cut, Garbage, Hang, Refuse, Throttle
from kubelet_standin.apiserver.faults import Fault
from tests.claims import (
    Node,
    claim_object,
    make_node,
    prepared_devices,
    reference,
    refusal,
)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


@pytest.fixture
async def claims(node: Node) -> AsyncIterator[Claims]:
    async with node.claims() as claims:
        yield claims


async def test_a_prepare_before_the_first_scan_waits_for_it(node: Node) -> None:
    async with node.claims(scanned=False) as claims:
        task = asyncio.create_task(prepared_devices(claims, node.source.add("a", "phone1")))
        await claims._worker.run(lambda: None)
        claims._inventory.publish(node.backend.devices())
        assert [device.device for device in await task] == ["phone1"]


async def test_a_404_that_is_not_the_api_servers_does_not_end_a_prepared_claim(node: Node, claims: Claims) -> None:
    claim = node.source.add("a", "phone1")
    first = await prepared_devices(claims, claim)
    node.source.errors = [NotFoundError(None, "404 page not found", status=404)]
    assert await prepared_devices(claims, claim) == first


@contextlib.asynccontextmanager
async def api_claims(node: Node, server: ApiServer) -> AsyncIterator[Claims]:
    """Run claims with the client of an API server, which waits for an answer for a moment only."""
    async with (
        ApiClient(Credentials(server.url), limits=ApiLimits(request=0.2)) as client,
        node.claims(get_claim=partial(get_claim, client)) as claims,
    ):
        yield claims


async def test_a_name_that_is_no_part_of_a_path_is_refused(node: Node) -> None:
    async with ApiServer() as server, api_claims(node, server) as claims:
        assert "not a valid name" in await refusal(claims, ClaimReference("default", "../secrets", "a"))


@pytest.mark.parametrize(
    "fault", [Hang(), Garbage(), Cut(), Throttle(retry_after=0.01), Refuse(503), Refuse(401)], ids=repr
)
async def test_a_claim_is_prepared_when_the_api_server_has_recovered(node: Node, fault: Fault) -> None:
    async with ApiServer() as server, api_claims(node, server) as claims:
        body = {**claim_object("", {"phone": ["phone1"]}), "metadata": {"name": "claim-a"}}
        created = server.objects.create(protocol.resource_claims("default"), body)
        added = server.faults.add(fault, verb="get", resource="resourceclaims", times=2)
        claim = ClaimReference("default", "claim-a", created["metadata"]["uid"])
        assert [device.device for device in await prepared_devices(claims, claim)] == ["phone1"]
        assert added.hits == 2


async def test_missing_rights_are_named(node: Node) -> None:
    async with ApiServer() as server, api_claims(node, server) as claims:
        server.faults.add(Refuse(403), verb="get", resource="resourceclaims")
        text = await refusal(claims, reference("a"))
        assert "requires the verb get on resourceclaims of API group" in text
