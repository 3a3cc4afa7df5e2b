"""The client of the podresources API, over a real socket."""

import asyncio
import os
from typing import Any

import grpc
import pytest

from aosp_plugin.framework.api import podresources_pb2 as pb
from aosp_plugin.framework.podresources_client import Allocations, Owner
from aosp_plugin.framework.podresources_client import PodResources as Client
from tests.pod_resources import answering, response
from tests.support import PATIENCE, RESOURCE


@pytest.fixture
def socket(kubelet_dir: str) -> str:
    return os.path.join(kubelet_dir, "pod-resources.sock")


@pytest.fixture
def client(socket: str) -> Client:
    return Client(socket, [RESOURCE], answer=PATIENCE, node_name="Node-1")


async def one_pod(_context: Any) -> pb.ListPodResourcesResponse:
    return response(("games", "phone-1", "android", RESOURCE, ["n1"]))


ONE_POD = Allocations(
    "",
    {RESOURCE: {"n1": (Owner("games", "phone-1", "android"),)}},
    by_plugin={RESOURCE: frozenset({"n1"})},
    by_claim={RESOURCE: frozenset()},
)


async def refuse(context: Any) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many")


async def hang(_context: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("failure", "problem"), [(refuse, "RESOURCE_EXHAUSTED: too many"), (hang, "no answer within 0 s")]
)
async def test_failed_query_is_reported_until_one_succeeds(
    socket: str, client: Client, failure: Any, problem: str
) -> None:
    client._answer = 0.1 if failure is hang else PATIENCE
    answers = [failure]

    async def answer(context: Any) -> Any:
        return await answers[-1](context)

    async with answering(socket, answer):
        assert await client.query() == Allocations(f"List at {socket} failed: {problem}")
        client._answer = PATIENCE
        answers.append(one_pod)
        assert await client.query() == ONE_POD


# -- queries


async def test_latest_answer_stays_for_others(socket: str, client: Client) -> None:
    """Devices of other resources do not count as those of this process."""

    async def two_pods(_context: Any) -> pb.ListPodResourcesResponse:
        return response(*(("games", name, "android", name, ["n1"]) for name in (RESOURCE, "x.io/other")))

    assert client.allocated() == {}
    async with answering(socket, two_pods):
        answer = await client.query({"x.io/other": []})
    assert client.answered.is_set()
    assert client.latest is answer
    assert {*answer.owners} == {RESOURCE, "x.io/other"}
    assert client.allocated() == {RESOURCE: 1}


async def test_kubelet_that_has_listed_no_pod_since_its_start_may_not_know_its_pods(
    socket: str, client: Client
) -> None:
    """It gets them from the API server, which may be away, and lists static pods before. Later, there may be none."""
    static = response(("kube-system", "proxy-node-1", "proxy", RESOURCE, []))
    answers = [response(), static, await one_pod(None), static]

    async def answer(_context: Any) -> pb.ListPodResourcesResponse:
        return answers[server.requests - 1]

    for _ in range(2):  # the second time after a restart of the kubelet
        async with answering(socket, answer) as server:
            known = [(await client.query()).pods_known for _ in answers]
            assert known == [False, False, True, True]


async def test_answer_of_a_kubelet_that_started_during_the_question_is_none(socket: str, client: Client) -> None:
    """It may not know its pods, unlike the one before."""

    async def restarted(_context: Any) -> pb.ListPodResourcesResponse:
        os.utime(socket)  # which the socket of another kubelet differs by
        return response()

    answers = [one_pod, restarted]

    async def answer(context: Any) -> pb.ListPodResourcesResponse:
        return await answers[server.requests - 1](context)

    async with answering(socket, answer) as server:
        assert await client.query() == ONE_POD
        assert await client.query() == Allocations(f"{socket} was replaced: the kubelet has restarted")
