"""Events on the Node: what an API server has of them after repetitions, failures and floods."""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient, ApiLimits
from aosp_plugin.framework.clock import Backoff
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.report.node_events import NodeEvents, Occurrence
from aosp_plugin.report.node_reporter import keep_written
from kubelet_standin.apiserver import ApiServer, Cut, Hang, Refuse
from tests.static_credentials import StaticCredentials
from tests.support import Clock, until

RESOURCE = "aosp.io/binder"
EVENTS = protocol.events("default")
START = 1767323045.0  # 2026-01-02T03:04:05Z


class Node:
    """A node whose Events are written."""

    def __init__(self, server: ApiServer, events: NodeEvents, clock: Clock, conditions: Conditions) -> None:
        self.server = server
        self.clock = clock
        self.conditions = conditions
        self._events = events

    def lost(self, message: str, resource: str = RESOURCE) -> None:
        """Record that devices were lost."""
        self._events.record(resource, Occurrence("Warning", "DevicesLost", message))

    def pass_pause(self) -> None:
        """Let Events be written again."""
        for event in self._events._events.values():
            event.due = 0.0

    @property
    def stored(self) -> list[dict[str, Any]]:
        """The Events that the API server has."""
        return list(self.server.objects.list(EVENTS))

    async def counted(self, *counts: int) -> list[dict[str, Any]]:
        """Wait until the API server has Events with these counts, in any order."""
        await self.server.wait_for(lambda _: sorted(each["count"] for each in self.stored) == sorted(counts))
        return self.stored


@pytest.fixture
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """Yield a node; the fixture's parameter has the pause between two requests of an Event, or a request's limit."""
    conditions = Conditions()
    clock = Clock(START)
    seconds = getattr(request, "param", {})
    async with (
        ApiServer() as server,
        contextlib.aclosing(
            ApiClient(StaticCredentials(server.url), limits=ApiLimits(request=seconds.get("request", 30.0)))
        ) as client,
    ):
        events = NodeEvents(client, "worker", [], pause=seconds.get("pause", 0.0), clock=clock)
        backoff = Backoff(first=0.01, cap=0.02)
        work = keep_written("events", events, conditions, interval=0.01, backoff=backoff)
        async with background_task(work):
            yield Node(server, events, clock, conditions)


async def test_a_repetition_is_counted_in_the_same_event_with_the_latest_message(node: Node) -> None:
    node.lost("2 devices lost")
    await node.counted(1)
    node.clock.now += 300
    node.lost("3 devices lost")
    (event,) = await node.counted(2)
    assert event["message"] == "3 devices lost"
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-01-02T03:04:05Z", "2026-01-02T03:09:05Z")


@pytest.mark.parametrize("node", [{"pause": 3600.0}], indirect=True, ids=["pause"])
async def test_a_repetition_waits_for_the_pause_and_is_not_dropped(node: Node) -> None:
    node.lost("a")
    await node.counted(1)
    node.lost("b")
    node.lost("c", "aosp.io/phone")
    await node.counted(1, 1)
    node.lost("d", "aosp.io/binder2")
    await node.counted(1, 1, 1)
    assert node.server.count("patch", "events") == 0
    node.pass_pause()
    await node.counted(1, 1, 2)


async def test_an_event_that_has_expired_is_created_again_with_its_count(node: Node) -> None:
    node.lost("a")
    (event,) = await node.counted(1)
    node.server.objects.delete(protocol.object_path(EVENTS, event["metadata"]["name"]))
    node.clock.now += 1
    node.lost("b")
    (event,) = await node.counted(2)
    assert event["message"] == "b"


async def test_an_event_whose_creation_was_not_answered_exists_once(node: Node) -> None:
    node.server.faults.add(Cut(after=None), verb="create", resource="events", times=1)
    node.lost("a")
    await node.server.wait_for(lambda server: server.count("patch", "events"))
    (event,) = await node.counted(1)
    assert event["message"] == "a"


@pytest.mark.parametrize("node", [{"request": 0.3}], indirect=True, ids=["limit"])
async def test_a_server_that_hangs_or_fails_gets_the_event_later_and_the_problem_is_logged_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hang = node.server.faults.add(Hang(), resource="events")
    node.lost("a")
    await node.server.wait_for(lambda server: server.count("create", "events") >= 2)
    node.lost("b")
    hang.remove()
    (event,) = await node.counted(2)
    assert event["message"] == "b"
    await until(lambda: not node.conditions.of(""))
    refused = node.server.faults.add(Refuse(403, "Forbidden", "no"), resource="events")
    node.lost("c")
    await node.server.wait_for(lambda _: refused.hits >= 3)
    assert [each.subject for each in node.conditions.of("")] == ["events"]
    refused.remove()
    await node.counted(3)
    await until(lambda: not node.conditions.of(""))
    messages = [(record.message, getattr(record, "error", "")) for record in caplog.records]
    texts = [message for message, _ in messages]
    assert texts == ["node task failed, retrying", "node task recovered"] * 2
    assert "the service account requires the verb patch on events" in messages[2][1]
