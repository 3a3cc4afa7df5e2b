"""Whatever is sent to the plugin's socket is answered with a documented code, and the kubelet's stream goes on.

By hypothesis, against one running plugin for all examples of a test; ``tests/fuzz`` does the same guided by coverage.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from tests.served import DOCUMENTED, HEALTHY, UNHEALTHY, ServedPlugin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.message import Message
    from hypothesis.strategies import SearchStrategy

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
    """Return the requests of some containers."""
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
    """Return a message of any kind with some of its bytes cut out, changed or put in."""
    data = bytearray(draw(st.one_of(*MESSAGES.values())).SerializeToString())
    for _ in range(draw(st.integers(0, 4))):
        start, length = draw(st.integers(0, len(data))), draw(st.integers(0, 3))
        data[start : start + length] = draw(st.binary(max_size=3))
    return bytes(data)


@pytest.fixture
def served(device_directory: DeviceDirectory, kubelet_dir: str) -> Iterator[ServedPlugin]:
    """Return a plugin that runs, and check at the end that it still does."""
    with asyncio.Runner() as runner:
        made = ServedPlugin(runner, device_directory, kubelet_dir)
        yield made
        made.check_stream()
        made.run(made.close())


EXAMPLES = settings(max_examples=300)


@given(st.sampled_from([*REQUESTS, "ListAndWatch2", ""]), st.binary(max_size=64) | damaged())
@EXAMPLES
def check_bytes(served: ServedPlugin, method: str, data: bytes) -> None:
    code, _, error = served.run(served.call(method, data))
    allowed = DOCUMENTED if method in REQUESTS else {"UNIMPLEMENTED"}
    assert code in allowed, f"{method} {data!r}: {code} {error}"
    assert bool(error) == (code != "OK")
    assert "\n" not in error


def test_any_bytes_are_answered_with_a_documented_code(served: ServedPlugin) -> None:
    """And each error has a text of one line."""
    check_bytes(served)


def expected_of(wanted: Sequence[Sequence[str]]) -> str:
    """Return the code for containers, or one, that ask for these IDs."""
    if not wanted or not all(wanted):
        return "INVALID_ARGUMENT"
    for device_id in (one for ids in wanted for one in ids):
        if device_id not in {*HEALTHY, UNHEALTHY}:
            return "NOT_FOUND"
        if device_id == UNHEALTHY:
            return "FAILED_PRECONDITION"
    return "OK"


@given(MESSAGES["Allocate"])
@EXAMPLES
def check_allocate(served: ServedPlugin, request_: pb.AllocateRequest) -> None:
    wanted = [list(one.devices_ids) for one in request_.container_requests]
    code, reply, _ = served.run(served.call("Allocate", request_.SerializeToString()))
    assert code == expected_of(wanted)
    given_ = [one.envs["BINDER_VISIBLE_DEVICES"] for one in pb.AllocateResponse.FromString(reply).container_responses]
    assert given_ == ([",".join(natural_sort([*{*ids}])) for ids in wanted] if code == "OK" else [])


def test_any_allocate_is_answered_for_each_container_or_not_at_all(served: ServedPlugin) -> None:
    """The code is that of the first thing that is wrong with it."""
    check_allocate(served)


@given(MESSAGES["PreStartContainer"])
@EXAMPLES
def check_pre_start(served: ServedPlugin, request_: pb.PreStartContainerRequest) -> None:
    code, _, _ = served.run(served.call("PreStartContainer", request_.SerializeToString()))
    assert code == expected_of([list(request_.devices_ids)])


def test_any_pre_start_is_answered_as_allocate_is(served: ServedPlugin) -> None:
    """For one container."""
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


def test_any_preference_is_a_choice_of_what_is_offered(served: ServedPlugin) -> None:
    """Each device once, whatever number is asked for, and however often one is offered."""
    check_prefer(served)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Return frames of HTTP/2 with arbitrary types, flags, streams and lengths."""
    data = b""
    for _ in range(draw(st.integers(0, 4))):
        payload = draw(st.binary(max_size=20))
        length = draw(st.just(len(payload)) | st.integers(0, 2**24 - 1))
        head = [*length.to_bytes(3), draw(st.integers(0, 10)), draw(st.integers(0, 255))]
        data += bytes(head) + draw(st.integers(0, 5)).to_bytes(4) + payload
    return data


@given(st.binary(max_size=64) | frames().map(PREFACE.__add__))
@settings(max_examples=100)
def check_noise(served: ServedPlugin, data: bytes) -> None:
    served.run(served.send_raw(data))
    assert not served.task.done()


def test_any_bytes_on_the_socket_cost_a_connection_at_most(served: ServedPlugin) -> None:
    """Whether they begin as HTTP/2 or as nothing at all; the next one is served, and the kubelet's goes on."""
    check_noise(served)
    assert served.run(served.call("GetDevicePluginOptions", b""))[0] == "OK"
