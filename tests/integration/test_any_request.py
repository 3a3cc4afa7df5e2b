"""Arbitrary requests get a documented gRPC code, and the kubelet's stream stays open.

By hypothesis, against one running plugin for all examples of a test; ``tests/fuzz`` does the same guided by coverage.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from aosp_plugin.binder.devices.sets import natural_sort
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from tests.served import DOCUMENTED, HEALTHY, UNHEALTHY, ServedPlugin
from tests.support import DeviceDirectory

REQUESTS: dict[str, type[Message]] = {
    "GetDevicePluginOptions": pb.Empty,
    "GetPreferredAllocation": pb.PreferredAllocationRequest,
    "Allocate": pb.AllocateRequest,
    "PreStartContainer": pb.PreStartContainerRequest,
}
IDS = st.sampled_from([*HEALTHY, *HEALTHY, UNHEALTHY, "aosp_binder9", "", "/", "\0"]) | st.text(max_size=20)
SIZES = st.integers(-1, 9) | st.sampled_from([-(2**31), 2**31 - 1])
LISTS = st.lists(IDS, max_size=6)


def containers(make: type[Message], **fields: SearchStrategy[Any]) -> SearchStrategy[list[Any]]:
    """Return a strategy for the requests of some containers."""
    return st.lists(st.builds(make, **fields), max_size=3)


MESSAGES: dict[str, SearchStrategy[Message]] = {
    "GetDevicePluginOptions": st.builds(pb.Empty),
    "GetPreferredAllocation": st.builds(
        pb.PreferredAllocationRequest,
        container_requests=containers(
            pb.ContainerPreferredAllocationRequest,
            available_deviceIDs=LISTS,
            must_include_deviceIDs=LISTS,
            allocation_size=SIZES,
        ),
    ),
    "Allocate": st.builds(
        pb.AllocateRequest, container_requests=containers(pb.ContainerAllocateRequest, devices_ids=LISTS)
    ),
    "PreStartContainer": st.builds(pb.PreStartContainerRequest, devices_ids=LISTS),
}


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return an encoded message with some bytes removed, changed or inserted."""
    data = bytearray(draw(st.one_of(*MESSAGES.values())).SerializeToString())
    for _ in range(draw(st.integers(0, 4))):
        start, length = draw(st.integers(0, len(data))), draw(st.integers(0, 3))
        data[start : start + length] = draw(st.binary(max_size=3))
    return bytes(data)


@pytest.fixture
def served(device_directory: DeviceDirectory, kubelet_dir: str) -> Iterator[ServedPlugin]:
    """Return a running plugin, and check at the end that it still runs."""
    with asyncio.Runner() as runner:
        made = ServedPlugin(runner, device_directory, kubelet_dir)
        yield made
        made.check_stream()
        made.run(made.close())


EXAMPLES = settings(max_examples=60)


@given(st.sampled_from([*REQUESTS, "ListAndWatch2", ""]), st.binary(max_size=64) | damaged())
@EXAMPLES
def check_bytes(served: ServedPlugin, method: str, data: bytes) -> None:
    code, _, error = served.run(served.call(method, data))
    allowed = DOCUMENTED if method in REQUESTS else {"UNIMPLEMENTED"}
    assert code in allowed, f"{method} {data!r}: {code} {error}"
    assert bool(error) == (code != "OK")
    assert "\n" not in error


def test_arbitrary_bytes_are_answered_with_a_documented_code(served: ServedPlugin) -> None:
    check_bytes(served)


def expected_code(requests: Sequence[Sequence[str]]) -> str:
    """Return the expected gRPC code for a request with these IDs per container."""
    if not requests or not all(requests):
        return "INVALID_ARGUMENT"
    for device_id in itertools.chain.from_iterable(requests):
        if device_id not in {*HEALTHY, UNHEALTHY}:
            return "NOT_FOUND"
        if device_id == UNHEALTHY:
            return "FAILED_PRECONDITION"
    return "OK"


@given(MESSAGES["Allocate"])
@EXAMPLES
def check_allocate(served: ServedPlugin, request_: pb.AllocateRequest) -> None:
    requests = [list(container.devices_ids) for container in request_.container_requests]
    code, reply, _ = served.run(served.call("Allocate", request_.SerializeToString()))
    assert code == expected_code(requests)
    responses = pb.AllocateResponse.FromString(reply).container_responses
    allocated = [response.envs["BINDER_VISIBLE_DEVICES"] for response in responses]
    assert allocated == ([",".join(natural_sort([*{*ids}])) for ids in requests] if code == "OK" else [])


def test_arbitrary_allocate_is_answered_completely_or_refused(served: ServedPlugin) -> None:
    check_allocate(served)


@given(MESSAGES["PreStartContainer"])
@EXAMPLES
def check_pre_start(served: ServedPlugin, request_: pb.PreStartContainerRequest) -> None:
    code, _, _ = served.run(served.call("PreStartContainer", request_.SerializeToString()))
    assert code == expected_code([list(request_.devices_ids)])


def test_arbitrary_pre_start_is_answered_like_allocate(served: ServedPlugin) -> None:
    check_pre_start(served)


@given(MESSAGES["GetPreferredAllocation"])
@EXAMPLES
def check_prefer(served: ServedPlugin, request_: pb.PreferredAllocationRequest) -> None:
    code, reply, error = served.run(served.call("GetPreferredAllocation", request_.SerializeToString()))
    assert code == ("OK" if request_.container_requests else "INVALID_ARGUMENT"), error
    chosen = [one.deviceIDs for one in pb.PreferredAllocationResponse.FromString(reply).container_responses]
    for ids, asked in zip(chosen, request_.container_requests, strict=True):
        assert {*ids} <= {*asked.available_deviceIDs, *asked.must_include_deviceIDs}
        assert len(ids) == len({*ids})


def test_arbitrary_preference_is_a_subset_of_the_available_devices(served: ServedPlugin) -> None:
    check_prefer(served)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Return HTTP/2 frames with arbitrary types, flags, streams and lengths."""
    data = b""
    for _ in range(draw(st.integers(0, 4))):
        payload = draw(st.binary(max_size=20))
        length = draw(st.just(len(payload)) | st.integers(0, 2**24 - 1))
        head = [*length.to_bytes(3), draw(st.integers(0, 10)), draw(st.integers(0, 255))]
        data += bytes(head) + draw(st.integers(0, 5)).to_bytes(4) + payload
    return data


@given(st.binary(max_size=64) | frames().map(PREFACE.__add__))
@settings(max_examples=40)
def check_noise(served: ServedPlugin, data: bytes) -> None:
    served.run(served.send_raw(data))
    assert not served.task.done()


def test_arbitrary_bytes_on_the_socket_end_only_their_connection(served: ServedPlugin) -> None:
    check_noise(served)
    assert served.run(served.call("GetDevicePluginOptions", b""))[0] == "OK"
