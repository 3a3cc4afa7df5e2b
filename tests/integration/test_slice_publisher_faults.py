"""The publisher of ResourceSlices while the API server refuses, breaks, forgets, hangs or is away."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import InvalidObjectError, Request
from aosp_plugin.framework.timings import Timings
from kubelet_standin.apiserver import ApiServer, Hang, Refuse
from tests.slices import NODE, NODE_PATH, SLICES, Publishing, phones, publishing, slice_name, slice_path
from tests.support import until

SOON = Timings(slice_relist=0.2, watch_pause=(0.0, 0.1))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings and errors that were logged."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Conflicts


async def test_a_slice_that_another_process_creates_at_the_same_time_is_taken_as_it_is(server: ApiServer) -> None:
    async with publishing(server, phones(1)) as first:
        found = server.objects.get(slice_path(0))
    owners = found["metadata"]["ownerReferences"]
    content = {"metadata": {"name": slice_name(0), "ownerReferences": owners}, "spec": found["spec"]}
    first.wipe()
    writes = first.writes()
    hang = server.faults.add(Hang(), verb="create")
    async with publishing(server) as running:
        running.inventory.publish(phones(1))
        await server.wait_for(lambda _: hang.hits)
        server.objects.create(SLICES, content)
        hang.remove()
        await running.confirmed()
        assert [record.code for record in server.log if record.verb == "create"][-1] == 409
        assert running.writes() == writes + 1


async def test_an_update_that_meets_a_foreign_change_is_repeated(server: ApiServer) -> None:
    async with publishing(server, phones(1)) as running:
        hang = server.faults.add(Hang(), verb="update")
        running.inventory.publish(phones(2))
        await server.wait_for(lambda _: hang.hits)
        running.edit(0, lambda found: found["metadata"].update(labels={"a": "b"}))
        hang.remove()
        await running.shown(["phone0", "phone1"])
        assert [record.code for record in server.log if record.verb == "update"] == [409, 200]
        assert server.objects.get(slice_path(0))["metadata"]["labels"] == {"a": "b"}
        assert not running.publisher.problem


# Refusals


class RefusingABlock(ApiClient):
    """A client whose API server finds the second slice invalid until it has fewer devices."""

    async def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object."""
        if body["metadata"]["name"] == slice_name(1) and len(body["spec"]["devices"]) > 1:
            raise InvalidObjectError(
                Request("create", path), "422 Invalid: spec.devices[0]: what a surprise", status=422
            )
        return await super().create(path, body, dry_run=dry_run)


async def test_a_slice_that_is_invalid_is_logged_once_and_stops_no_other(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with publishing(server, client_type=RefusingABlock, timings=SOON) as running:
        running.inventory.publish(phones(200))
        await running.problem("422 Invalid: spec.devices[0]: what a surprise")
        await server.wait_for(lambda _: len(running.slices()) == 3)
        lists = server.count("list", "resourceslices")
        await server.wait_for(lambda s: s.count("list", "resourceslices") > lists + 2)
        assert problems(caplog) == ["DRA driver has a problem"]
        assert not running.publisher.confirmed
        await running.published(phones(65))
        await running.fine()


async def test_a_missing_right_is_named_with_verb_and_resource_and_heals(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.access.forbid("create", "resourceslices")
    async with publishing(server) as running:
        running.inventory.publish(phones(130))
        await running.problem(
            'the service account requires the verb create on resourceslices of API group "resource.k8s.io"'
        )
        await server.wait_for(lambda s: s.count("create") > 3)
        assert "and 2 more errors" in running.publisher.problem
        assert problems(caplog) == ["DRA driver has a problem"]
        server.access.permit("create", "resourceslices")
        await running.confirmed()
        await running.fine()


@pytest.mark.parametrize(
    ("verb", "resource", "group"),
    [("list", "resourceslices", 'API group "resource.k8s.io"'), ("get", "nodes", "the core API group")],
)
async def test_without_the_right_to_read_nothing_is_written_until_it_is_given(
    server: ApiServer, verb: str, resource: str, group: str
) -> None:
    server.access.forbid(verb, resource)
    async with publishing(server) as running:
        running.inventory.publish(phones(1))
        await running.problem(f"the service account requires the verb {verb} on {resource} of {group}")
        assert running.writes() == 0
        server.access.permit(verb, resource)
        await running.confirmed()
        await running.fine()


async def test_a_cluster_without_the_api_is_named_as_too_old(server: ApiServer) -> None:
    missing = server.faults.add(
        Refuse(404, "NotFound", "the server could not find the requested resource"), verb="list"
    )
    async with publishing(server) as running:
        running.inventory.publish(phones(1))
        await running.problem("does not serve /apis/resource.k8s.io/v1, which requires Kubernetes 1.34 or newer")
        missing.remove()
        await running.confirmed()


async def test_two_drivers_that_want_different_slices_do_not_flood_the_api_server(server: ApiServer) -> None:
    loop = asyncio.get_running_loop()
    async with publishing(server, phones(1)), publishing(server) as other:
        started = loop.time()
        other.inventory.publish(phones(2))
        await server.wait_for(lambda s: s.count("update", "resourceslices") >= 8)
        assert loop.time() - started > 0.05 + 0.1 + 0.2  # the least pauses between four repairs of each


# Connections


@pytest.mark.parametrize("compacted", [True, False])
async def test_a_watch_that_breaks_is_opened_again_and_what_it_missed_is_found(
    server: ApiServer, *, compacted: bool
) -> None:
    async with publishing(server, phones(1)) as running:
        server.faults.add(Hang(), verb="watch", times=1)
        await server.wait_for(lambda s: s.open_watches)
        server.drop_connections()
        await server.wait_for(lambda s: not s.open_watches)
        running.wipe()
        if compacted:
            server.compact()
        server.faults.clear()
        await running.shown(["phone0"])
        assert await running.repaired(1) == {"deleted": 1}
        await running.fine()


async def test_while_the_api_server_is_away_the_devices_stay_and_changes_follow_when_it_is_back(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with publishing(server, phones(2), timings=SOON) as running:
        await server.stop()
        await running.problem("cannot connect")
        stayed = running.publisher.confirmed
        assert stayed
        running.inventory.publish(phones(3))
        await until(lambda: not running.publisher.confirmed)
        assert len(problems(caplog)) <= 4
        await server.start()
        await running.shown(["phone0", "phone1", "phone2"])
        await running.fine()


# The Node


async def test_without_a_node_nothing_is_published_and_the_problem_asks_for_its_name(server: ApiServer) -> None:
    async with publishing(server, node=False) as running:
        running.inventory.publish(phones(1))
        await running.problem(f"there is no Node {NODE}: is NODE_NAME the name of this node?")
        assert running.writes() == 0
        server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
        await running.confirmed()
        await running.fine()


async def test_slices_that_are_collected_with_their_node_wait_for_the_next_one(server: ApiServer) -> None:
    async with publishing(server, phones(1)) as running:
        server.objects.delete(NODE_PATH)
        server.objects.collect_garbage()
        await running.problem(f"there is no Node {NODE}")
        server.objects.collect_garbage()
        writes = running.writes()
        nodes = server.count("get", "nodes")
        await server.wait_for(lambda s: s.count("get", "nodes") > nodes + 2)
        assert running.writes() == writes
        assert not running.publisher.confirmed
        created = server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
        await running.shown(["phone0"])
        assert owner(running) == created["metadata"]["uid"]


def owner(running: Publishing) -> str:
    """Return the UID in the owner reference of the first slice."""
    (reference,) = running.slices()[0]["metadata"]["ownerReferences"]
    return str(reference["uid"])
