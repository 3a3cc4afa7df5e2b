"""The publisher of ResourceSlices while the API server refuses, breaks, forgets, hangs or is away."""

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import InvalidObjectError, Request
from aosp_plugin.framework.timings import Timings
from kubelet_standin.apiserver import ApiServer, Hang, Refuse
from tests.slices import phones, publishing, slice_name, slice_path

SOON = Timings(slice_relist=0.2, watch_pause=(0.0, 0.1))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings and errors that were logged."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Conflicts


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


async def test_a_cluster_without_the_api_is_named_as_too_old(server: ApiServer) -> None:
    missing = server.faults.add(
        Refuse(404, "NotFound", "the server could not find the requested resource"), verb="list"
    )
    async with publishing(server) as running:
        running.inventory.publish(phones(1))
        await running.problem("does not serve /apis/resource.k8s.io/v1, which requires Kubernetes 1.34 or newer")
        missing.remove()
        await running.confirmed()


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


# The Node
