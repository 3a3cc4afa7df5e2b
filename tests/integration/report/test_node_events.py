"""Events on the Node: what an API server has of them after failures."""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient, ApiLimits
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.timing import Backoff, background_task
from aosp_plugin.report.node_events import NodeEvents, Occurrence
from aosp_plugin.report.node_reporter import keep_written, problem_metric
from kubelet_standin.apiserver import ApiServer, Cut, Hang, Refuse
from tests.static_credentials import StaticCredentials
from tests.support import Clock, until

EVENTS = protocol.events("default")
START = 1767323045.0  # 2026-01-02T03:04:05Z


class Node:
    """A node whose Events are written; it is a watch of its own."""

    def __init__(self, server: ApiServer, conditions: Conditions) -> None:
        self.server = server
        self.conditions = conditions
        self._lost: list[Occurrence] = []

    def lost(self, message: str) -> None:
        """Report that devices were lost."""
        self._lost.append(Occurrence("Warning", "DevicesLost", message))

    def occurrences(self) -> Iterator[Occurrence]:
        """Yield what was reported since the last call."""
        found, self._lost = self._lost, []
        yield from found

    async def written(self, *messages: str) -> list[dict[str, Any]]:
        """Wait until the API server has Events with these messages."""
        stored = self.server.objects.list
        await self.server.wait_for(lambda _: sorted(each["message"] for each in stored(EVENTS)) == [*messages])
        return list(stored(EVENTS))


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    conditions, limits = Conditions(), ApiLimits(request=0.3)
    async with (
        ApiServer() as server,
        contextlib.aclosing(ApiClient(StaticCredentials(server.url), limits=limits)) as client,
    ):
        node: Any = Node(server, conditions)
        events = NodeEvents(client, "worker", [node], clock=Clock(START))
        backoff, problem = Backoff(first=0.01, cap=0.02), problem_metric(Metrics())
        work = keep_written("events", events.write, conditions, problem, interval=0.01, backoff=backoff)
        async with background_task(work):
            yield node


async def test_each_event_has_its_time_and_its_message(node: Node) -> None:
    node.lost("2 devices lost")
    (event,) = await node.written("2 devices lost")
    assert (event["firstTimestamp"], event["lastTimestamp"], event["count"]) == (*["2026-01-02T03:04:05Z"] * 2, 1)
    node.lost("3 devices lost")
    await node.written("2 devices lost", "3 devices lost")


async def test_an_event_whose_creation_was_not_answered_exists_once(node: Node) -> None:
    node.server.faults.add(Cut(after=None), verb="create", resource="events", times=1)
    node.lost("a")
    await node.server.wait_for(lambda server: server.count("create", "events") == 2)
    node.lost("b")
    await node.written("a", "b")


async def test_a_server_that_hangs_or_fails_gets_the_events_later_and_the_problem_is_logged_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hang = node.server.faults.add(Hang(), resource="events")
    node.lost("a")
    await node.server.wait_for(lambda server: server.count("create", "events") >= 2)
    node.lost("b")
    hang.remove()
    await node.written("a", "b")
    await until(lambda: not node.conditions.of(""))
    refused = node.server.faults.add(Refuse(403, "Forbidden", "no"), resource="events")
    node.lost("c")
    await node.server.wait_for(lambda _: refused.hits >= 3)
    assert [each.subject for each in node.conditions.of("")] == ["events"]
    refused.remove()
    await node.written("a", "b", "c")
    await until(lambda: not node.conditions.of(""))
    messages = [(record.message, getattr(record, "error", "")) for record in caplog.records]
    texts = [message for message, _ in messages]
    assert texts == ["node task failed, retrying", "node task recovered"] * 2
    assert "the service account requires the verb create on events" in messages[2][1]
