"""The publisher of ResourceSlices while the API server refuses, breaks, forgets, hangs or is away."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.protocol import ApiError, InvalidObjectError, Request
from aosp_plugin.framework.timings import Timings
from kubelet_standin.apiserver import ApiServer, Cut, Garbage, Hang, Refuse, Throttle
from tests.slices import NODE, NODE_PATH, SLICES, Publishing, phones, publishing, slice_name, slice_path
from tests.support import until

SOON = Timings(slice_relist=0.2, watch_pause=(0.0, 0.1))
SHORT = ApiLimits(request=0.5, watch=(1.0, 1.0), grace=0.1)


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


async def test_a_slice_that_is_deleted_before_its_update_is_created(server: ApiServer) -> None:
    async with publishing(server, phones(1)) as running:
        hang = server.faults.add(Hang(), verb="update")
        running.inventory.publish(phones(2))
        await server.wait_for(lambda _: hang.hits)
        running.wipe()
        hang.remove()
        await running.shown(["phone0", "phone1"])


@pytest.mark.parametrize("part", [None, 0.0, 0.5])
async def test_an_answer_that_is_cut_off_is_no_reason_to_write_twice(server: ApiServer, part: float | None) -> None:
    async with publishing(server) as running:
        cut = server.faults.add(Cut(part), verb="create", times=1)
        running.inventory.publish(phones(1))
        await server.wait_for(lambda _: cut.hits)
        await running.confirmed()
        await running.fine()
        assert len(running.slices()) == 1
        assert server.count("update", "resourceslices") == 0


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


async def test_without_the_right_to_watch_lists_repair_and_the_problem_names_it(server: ApiServer) -> None:
    server.access.forbid("watch", "resourceslices")
    async with publishing(server, phones(1), timings=SOON) as running:
        await running.problem("the service account requires the verb watch on resourceslices")
        running.wipe()
        await running.shown(["phone0"])
        assert await running.repaired(1) == {"deleted": 1}


async def test_an_expired_token_is_a_problem_until_there_is_another(server: ApiServer) -> None:
    server.access.add_token("another")
    async with publishing(server) as running:
        running.inventory.publish(phones(1))
        await running.problem("401 Unauthorized")
        server.access.require_no_token()
        await running.confirmed()
        await running.fine()


async def test_a_throttled_write_is_repeated(server: ApiServer) -> None:
    async with publishing(server) as running:
        throttle = server.faults.add(Throttle(1.0), verb="create", times=1)
        running.inventory.publish(phones(1))
        await running.problem("429 Too Many Requests")
        await running.confirmed()
        await running.fine()
        assert throttle.hits == 1


async def test_a_cluster_without_the_api_is_named_as_too_old(server: ApiServer) -> None:
    missing = server.faults.add(
        Refuse(404, "NotFound", "the server could not find the requested resource"), verb="list"
    )
    async with publishing(server) as running:
        running.inventory.publish(phones(1))
        await running.problem("does not serve /apis/resource.k8s.io/v1, which requires Kubernetes 1.34 or newer")
        missing.remove()
        await running.confirmed()


@pytest.mark.parametrize(
    "fault",
    [
        Refuse(500, "InternalError", "etcdserver: no space"),
        Garbage(),
        Garbage(b'{"kind": "ResourceSlice", "metadata": {}, "spec": {}}'),
        Garbage(b'{"kind": "ResourceSliceList", "metadata": {"resourceVersion": "9"}, "items": [{"a": 1}]}'),
        Garbage(b"[]", status=201),
        Cut(0.5),
        Cut(None),
    ],
    ids=lambda fault: type(fault).__name__,
)
@pytest.mark.parametrize("verb", ["get", "list", "create"])
async def test_answers_that_are_none_heal(server: ApiServer, fault: Any, verb: str) -> None:
    server.faults.add(fault, verb=verb, times=2)
    async with publishing(server, phones(70), timings=SOON) as running:
        await running.fine()
        assert len(running.slices()) == 2


class WithoutDryRuns(ApiClient):
    """A client whose API server has a webhook that does not support dry runs."""

    async def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object."""
        if dry_run:
            raise ApiError(Request("create", path), "400 BadRequest: dry run is not supported", status=400)
        return await super().create(path, body)


async def test_where_it_cannot_be_asked_whether_taints_are_kept_unhealthy_devices_are_omitted(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with publishing(server, phones(3, phone1="missing"), client_type=WithoutDryRuns) as running:
        await running.compared()
        assert running.taints() == {"phone0": [], "phone2": []}
    assert problems(caplog) == ["API server refuses the question whether it keeps taints"]


async def test_a_question_about_taints_that_fails_is_repeated(server: ApiServer) -> None:
    async with publishing(server, phones(2)) as running:
        server.faults.add(Refuse(), verb="create", times=2)
        running.inventory.publish(phones(2, phone1="missing"))
        await server.wait_for(lambda _: running.taints() == {"phone0": [], "phone1": ["missing"]})
        await running.fine()


async def test_two_drivers_that_want_different_slices_do_not_flood_the_api_server(server: ApiServer) -> None:
    loop = asyncio.get_running_loop()
    async with publishing(server, phones(1)), publishing(server) as other:
        started = loop.time()
        other.inventory.publish(phones(2))
        await server.wait_for(lambda s: s.count("update", "resourceslices") >= 8)
        assert loop.time() - started > 0.05 + 0.1 + 0.2  # the least pauses between four repairs of each


async def test_a_write_that_hangs_stops_no_other(server: ApiServer) -> None:
    async with publishing(server) as running:
        server.faults.add(Hang(), verb="create", times=1)
        running.inventory.publish(phones(200))
        await server.wait_for(lambda _: len(running.slices()) == 3)
        assert not running.publisher.confirmed


async def test_an_obsolete_slice_that_cannot_be_deleted_stops_no_other(server: ApiServer) -> None:
    async with publishing(server, phones(70)) as running:
        server.access.forbid("delete", "resourceslices")
        running.inventory.publish(
            [*phones(1), *[device._replace(id=f"phone{200 + n}") for n, device in enumerate(phones(2))]]
        )
        await running.problem("requires the verb delete on resourceslices")
        await running.shown([f"phone{number}" for number in (0, 64, 65, 66, 67, 68, 69, 200, 201)])


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


async def test_a_history_that_is_always_gone_does_not_lead_to_a_flood(server: ApiServer) -> None:
    expired = Refuse(410, "Expired", "too old resource version")
    async with publishing(server, phones(1)) as running:
        server.faults.add(expired, verb="watch")
        server.drop_connections()
        await server.wait_for(lambda s: s.count("watch", "resourceslices") > 4)
        lists = server.count("list", "resourceslices")
        assert lists <= 2 * server.count("watch", "resourceslices") + 2
        server.faults.clear()
        running.wipe()
        await running.shown(["phone0"])


async def test_a_watch_in_which_nothing_arrives_is_replaced(server: ApiServer) -> None:
    async with publishing(server, phones(1), limits=SHORT) as running:
        server.faults.silence_watches()
        running.wipe()
        await server.wait_for(lambda s: s.count("watch") > 1)
        server.faults.clear()
        await running.shown(["phone0"])


async def test_a_lost_event_is_repaired_by_the_next_list(server: ApiServer) -> None:
    async with publishing(server, phones(70), timings=SOON) as running:
        server.faults.silence_watches()
        running.wipe()
        await running.shown([device.id for device in phones(70)])
        assert await running.repaired(2) == {"deleted": 2}


async def test_the_kubelets_getinfo_leads_to_a_list(server: ApiServer) -> None:
    async with publishing(server, phones(1)) as running:
        server.faults.silence_watches()
        running.wipe()
        running.publisher.check()
        await running.shown(["phone0"])


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


async def test_a_publisher_that_starts_before_the_api_server_publishes_when_it_is_there(server: ApiServer) -> None:
    server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
    await server.stop()
    async with publishing(server) as running:
        running.inventory.publish(phones(1))
        await running.problem("cannot connect")
        await server.start()
        await running.confirmed()
        await running.fine()


async def test_after_the_api_servers_data_was_restored_from_a_backup_the_watch_repairs_again(server: ApiServer) -> None:
    """Versions after the restore are lower than those before."""
    for _ in range(30):
        foreign = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}}
        server.objects.create(protocol.NODES, foreign)
        server.objects.delete(protocol.object_path(protocol.NODES, "other"))
    async with publishing(server, phones(70)) as running:
        watches = server.count("watch", "resourceslices")
        await server.restart(keep_data=False)
        server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
        await running.shown([device.id for device in phones(70)])
        await server.wait_for(lambda s: s.count("watch", "resourceslices") > watches and s.open_watches)
        running.wipe()
        await running.shown([device.id for device in phones(70)])


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


async def test_slices_follow_a_node_that_is_replaced_by_another_of_the_same_name(server: ApiServer) -> None:
    async with publishing(server, phones(1)) as running:
        server.objects.delete(NODE_PATH)
        created = server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
        server.objects.collect_garbage()
        await server.wait_for(lambda _: running.slices() and owner(running) == created["metadata"]["uid"])
        assert server.objects.collect_garbage() == []
        await running.confirmed()


async def test_a_node_that_is_replaced_before_the_garbage_collector_notices_is_found_at_the_next_check(
    server: ApiServer,
) -> None:
    async with publishing(server, phones(1)) as running:
        server.objects.delete(NODE_PATH)
        created = server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
        running.publisher.check()
        await server.wait_for(lambda _: owner(running) == created["metadata"]["uid"])
        assert server.objects.collect_garbage() == []


async def test_no_task_is_left_when_the_publisher_ends_while_everything_fails(server: ApiServer) -> None:
    server.faults.add(Refuse())
    async with publishing(server) as running:
        running.inventory.publish(phones(10))
        await running.problem("503 ServiceUnavailable")
    await server.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
