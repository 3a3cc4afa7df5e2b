"""The publisher of ResourceSlices with the stand-in API server: what it publishes, and what it repairs."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import ApiError, InvalidObjectError, Object, Request, WatchEvent
from aosp_plugin.framework.backend import Found
from aosp_plugin.framework.dra import publisher
from aosp_plugin.framework.dra.slices import wanted_slices
from kubelet_standin.apiserver import ApiServer, Hang, Refuse
from tests.simulation.loop import SimulatedLoop
from tests.slices import (
    DRIVER,
    NODE,
    SLICES,
    Publishing,
    phones,
    publishing,
    slice_name,
    slice_path,
)
from tests.support import causes, counted, reported, until


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


async def at_rest(running: Publishing) -> None:
    """Wait until the publisher has compared everything, and everything is as it should be."""
    await running.compared()
    await running.confirmed()


async def test_number_of_slices_stays_while_they_are_computed(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status report reads it in another thread."""
    async with publishing(server, phones(70)) as running:
        seen: list[int] = []

        def computed(*arguments: Any, **options: Any) -> Any:
            seen.append(running.publisher.counts[0])
            return wanted_slices(*arguments, **options)

        monkeypatch.setattr(publisher, "wanted_slices", computed)
        await running.compared()
        assert set(seen) == {2}


async def test_at_rest_nothing_is_written_whatever_reason_there_is_to_look(server: ApiServer) -> None:
    """Of a change, only the slice of the device is. At the end, all stay."""
    async with publishing(server, phones(70, phone1="missing")) as running:
        assert counted(running.metrics, "slices_wanted") == counted(running.metrics, "slices_confirmed") == 2
        before = running.slices()
        running.inventory.republish()
        running.inventory.publish(Found(phones(70, phone1="missing")))
        for _ in range(3):
            await at_rest(running)
        server.end_watches()
        server.drop_connections()
        await server.wait_for(lambda s: s.open_watches)
        await at_rest(running)
        assert running.slices() == before  # with their versions: asking about taints writes nothing
        await running.published(phones(70, phone1="missing", phone65="missing"))
        assert [each["metadata"]["resourceVersion"] for each in before if each in running.slices()] == [
            before[0]["metadata"]["resourceVersion"]
        ]
        assert server.count("update", "resourceslices") == 1
    assert len(running.slices()) == 2
    assert server.count("delete") == server.count("deletecollection") == 0


async def test_a_foreign_change_is_repaired(server: ApiServer) -> None:
    async with publishing(server, phones(2)) as running:
        running.edit(0, lambda found: found["spec"]["devices"].pop())
        assert await running.repaired(1) == {"changed": 1}
        running.edit(0, lambda found: found["metadata"].pop("ownerReferences"))
        assert await running.repaired(2) == {"changed": 2}
        assert "ownerReferences" in server.objects.get(slice_path(0))["metadata"]
        assert running.free() == ["phone0", "phone1"]


def create_slice(
    server: ApiServer, name: str, *, driver: str = DRIVER, node: str = NODE, pool: str = "a", devices: Any = ()
) -> dict[str, Any]:
    """Create a slice, as another client or an earlier version; return its metadata."""
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "devices": [*devices],
    }
    metadata: dict[str, Any] = server.objects.create(SLICES, {"metadata": {"name": name}, "spec": spec})["metadata"]
    return metadata


async def test_obsolete_slices_are_deleted(server: ApiServer) -> None:
    """One of another pool under a name of ours is replaced."""
    async with publishing(server, phones(200)) as running:
        await running.published(phones(10))
        assert [each["metadata"]["name"] for each in running.slices()] == [slice_name(0)]
        devices = running.slices()[0]["spec"]["devices"]
    server.objects.delete(slice_path(0))
    create_slice(server, slice_name(0), pool="another", devices=devices)
    create_slice(server, "of-an-earlier-version", pool="x", devices=devices)
    async with publishing(server, phones(10)) as running:
        await server.wait_for(lambda _: [each["metadata"]["name"] for each in running.slices()] == [slice_name(0)])
        assert running.slices()[0]["spec"]["pool"]["name"] == f"{NODE}/00000"


@pytest.mark.parametrize("foreign", [{"driver": "gpu.example.com"}, {"node": "attacker"}], ids=["driver", "node"])
async def test_slices_have_other_names_if_one_of_others_has_the_name(
    server: ApiServer, foreign: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """That one may neither be changed nor deleted. The pools keep their names, which are in claims.

    So has the question about taints, without which unhealthy devices would be omitted.
    """
    created = create_slice(server, slice_name(1), **foreign)
    create_slice(server, f"probe-{DRIVER}-{NODE}", **foreign)
    async with publishing(server, phones(70, phone1="missing")) as running:
        await server.wait_for(lambda _: running.taints().get("phone1") == ["missing"])
        assert [each["spec"]["pool"]["name"] for each in running.slices()] == [f"{NODE}/00000", f"{NODE}/00001"]
        names = [each["metadata"]["name"] for each in running.slices()]
        assert [name.partition("x")[0] for name in names] == ["00000", "00001"]
        assert all(name.endswith(f"-{DRIVER}-{NODE}") and name.count("-", 0, 20) == 1 for name in names)
        assert server.objects.get(slice_path(1))["metadata"] == created
    assert "of another client has the name" in caplog.text


async def test_whether_taints_are_kept_is_asked_once_and_only_where_a_device_is_unhealthy() -> None:
    async with ApiServer(minor=34) as server, publishing(server, phones(3)) as running:
        assert server.count("create", "resourceslices") == 1
        for reason in ("missing", "replaced", "missing"):
            await running.published(phones(3, phone1=reason))
            await running.published(phones(3))
        assert server.count("create", "resourceslices") == 2


async def test_other_fields_that_the_server_drops_are_done_without() -> None:
    async with ApiServer(drop_fields=["attributes"]) as server, publishing(server, phones(2)) as running:
        assert server.count("create", "resourceslices") == 1
        await at_rest(running)
        assert running.writes() == 1
        running.edit(0, lambda found: found["spec"]["devices"].pop())
        await running.shown(["phone0", "phone1"])


async def test_devices_that_are_withheld_are_replaced_by_an_empty_slice_until_they_are_published_again(
    server: ApiServer,
) -> None:
    """Nothing is published before the first scan."""
    async with publishing(server) as running:
        await server.wait_for(lambda s: s.open_watches)
        lists = server.count("list", "resourceslices")
        running.publisher.check()
        await server.wait_for(lambda s: s.count("list", "resourceslices") > lists)
        assert not running.slices()
        assert not running.publisher.confirmed
        assert causes(running.publisher) == "the API server has not confirmed all ResourceSlices yet"
        await running.published(phones(70))
        running.publisher.withhold("the device plugin offers them on this node")
        await running.shown([])
        await server.wait_for(lambda _: len(running.slices()) == 1)
        assert "the device plugin offers them on this node" in causes(running.publisher)
        running.publisher.withhold("")
        await running.shown([device.id for device in phones(70)])
        await until(lambda: not reported(running.publisher))  # soon after the last answer


async def test_the_end_does_not_wait_for_the_api_server(server: ApiServer) -> None:
    async with publishing(server, phones(2)) as running:
        hang = server.faults.add(Hang())
        running.inventory.publish(Found(phones(3)))
        await server.wait_for(lambda _: hang.hits)
        running.task.cancel()
        async with asyncio.timeout(5):
            await server.wait_for(lambda s: not s.open_watches)


class WithoutSelectors(ApiClient):
    """A client whose API server does not apply field selectors, such as one behind a proxy that drops queries."""

    async def list(self, path: str, *, field_selector: str = "") -> Sequence[Object]:  # noqa: ARG002
        """List all slices."""
        return await super().list(path)

    def watch(self, path: str, *, field_selector: str = "", **options: Any) -> AsyncGenerator[WatchEvent, None]:  # noqa: ARG002
        """Watch all slices."""
        return super().watch(path, **options)


async def test_slices_of_others_are_not_even_touched_if_the_server_ignores_field_selectors(server: ApiServer) -> None:
    devices = [{"name": "a"}]
    created = [
        create_slice(server, "other-driver", driver="gpu.example.com", devices=devices),
        create_slice(server, "other-node", node="other", devices=devices),
    ]
    paths = [protocol.object_path(SLICES, name) for name in ("other-driver", "other-node")]
    async with publishing(server, phones(1), client_type=WithoutSelectors) as running:
        await at_rest(running)
        assert [server.objects.get(path)["metadata"] for path in paths] == created
        changed = server.objects.get(paths[0])
        changed["spec"]["devices"] = []
        server.objects.update(paths[0], changed)
        others = [*map(server.objects.get, paths)]
        await at_rest(running)
    assert [*map(server.objects.get, paths)] == others


# -- while the API server refuses, breaks, forgets or hangs


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings and errors that were logged."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_update_that_meets_a_foreign_change_is_repeated(server: ApiServer) -> None:
    async with publishing(server, phones(1)) as running:
        hang = server.faults.add(Hang(), verb="update")
        running.inventory.publish(Found(phones(2)))
        await server.wait_for(lambda _: hang.hits)
        running.edit(0, lambda found: found["metadata"].update(labels={"a": "b"}))
        hang.remove()
        await running.shown(["phone0", "phone1"])
        assert [record.code for record in server.log if record.verb == "update"] == [409, 200]
        assert server.objects.get(slice_path(0))["metadata"]["labels"] == {"a": "b"}
        await until(lambda: not reported(running.publisher))


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
    async with publishing(server, client_type=RefusingABlock) as running:
        running.inventory.publish(Found(phones(200)))
        await running.problem("422 Invalid: spec.devices[0]: what a surprise")
        await server.wait_for(lambda _: len(running.slices()) == 3)
        lists = server.count("list", "resourceslices")
        await server.wait_for(lambda s: s.count("list", "resourceslices") > lists + 2)
        assert problems(caplog) == ["DRA driver has a problem"]
        assert not running.publisher.confirmed
        await running.published(phones(65))
        await running.fine()


@pytest.mark.parametrize(
    ("refusal", "verb", "text"),
    [
        (
            Refuse(403, "Forbidden", "no"),
            "create",
            'the service account requires the verb create on resourceslices of API group "resource.k8s.io"',
        ),
        (
            Refuse(404, "NotFound", "the server could not find the requested resource"),
            "list",
            "does not serve /apis/resource.k8s.io/v1, which requires Kubernetes 1.34 or newer",
        ),
    ],
    ids=["right", "API"],
)
async def test_what_is_missing_is_named_and_logged_once(
    server: ApiServer, caplog: pytest.LogCaptureFixture, refusal: Refuse, verb: str, text: str
) -> None:
    refused = server.faults.add(refusal, verb=verb, resource="resourceslices")
    async with publishing(server) as running:
        running.inventory.publish(Found(phones(130)))
        await running.problem(text)
        await server.wait_for(lambda s: s.count(verb) > 3)
        assert ("and 2 more errors" in causes(running.publisher)) == (verb == "create")
        assert problems(caplog) == ["DRA driver has a problem"]
        refused.remove()
        await running.confirmed()
        await running.fine()


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


# Pauses, in simulated time


class Scripted:
    """An API server, and the client of it."""

    def __init__(self, *, list_errors: int = 0, watch_errors: int = 0, loses_slices: bool = False) -> None:
        """So many lists and watches fail at first; another client may delete each slice at once, all the time."""
        self.lists: list[float] = []
        """The time of each list."""
        self._list_errors, self._watch_errors, self._loses_slices = list_errors, watch_errors, loses_slices

    async def get(self, *_: object) -> Any:
        """Return the Node."""
        return SimpleNamespace(metadata=SimpleNamespace(uid="uid"))

    async def list(self, *_: object, **_options: object) -> Sequence[Any]:
        """Return no slice."""
        self.lists.append(asyncio.get_running_loop().time())
        if len(self.lists) <= self._list_errors:
            raise ApiError(None, "429", status=429, retry_after=30.0)
        return []

    async def create(self, _path: str, body: Mapping[str, Any], **_: object) -> Any:
        """Return the slice as it is stored."""
        return {**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "1"}}

    async def watch(self, *_: object, **_options: object) -> AsyncGenerator[WatchEvent, None]:
        """Yield what another client does."""
        if self._watch_errors:
            self._watch_errors -= 1
            raise ApiError(None, "503", status=503)
        while self._loses_slices:
            await asyncio.sleep(0.001)
            yield WatchEvent("DELETED", {"metadata": {}}, "2")
        await asyncio.Event().wait()


def problems_of(api: Any, *, changes: bool = False) -> str:
    """Publish for a minute, with a change of the devices each second if there are any; return the problems then."""
    loop = SimulatedLoop()

    async def publish() -> str:
        running = Publishing(api, api)
        for second in range(60):
            running.inventory.publish(Found(phones(second if changes else 1)))
            await asyncio.sleep(1.0)
        running.task.cancel()
        await asyncio.wait([running.task])
        return causes(running.publisher)

    with contextlib.closing(loop):
        return loop.run_until_complete(publish())


def test_repairs_of_what_another_client_repeats_have_longer_and_longer_pauses() -> None:
    """Although the watch reports each deletion."""
    api = Scripted(loses_slices=True)
    problems_of(api)
    pauses = [later - earlier for earlier, later in pairwise(api.lists)]
    assert pauses[7] > 2.0


def test_a_change_of_the_devices_does_not_shorten_the_pause_that_the_server_asks_for() -> None:
    api = Scripted(list_errors=1)
    problems_of(api, changes=True)
    assert api.lists[1] - api.lists[0] >= 30.0


@pytest.mark.parametrize(("failures", "problem"), [(1, ""), (2, "watch of ResourceSlices failed")])
def test_only_a_watch_that_fails_again_is_a_problem(failures: int, problem: str) -> None:
    """A single failure is the end of an API server."""
    assert problems_of(Scripted(watch_errors=failures)).partition(":")[0] == problem
