"""A request of Allocate is decoded as protobuf decodes it, also if it is not as a kubelet encodes it."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.deviceplugin import allocate_request
from aosp_plugin.framework.errors import InvalidRequestError

IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=70) | st.text("ab", min_size=120, max_size=140)
ENCODED = st.lists(st.lists(IDS, max_size=5) | st.lists(st.just("x" * 60), min_size=255, max_size=275), max_size=3).map(
    lambda containers: pb.AllocateRequest(
        container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    ).SerializeToString()
)


def by_protobuf(data: bytes) -> list[list[str]] | None:
    """Return what protobuf decodes; None if the request is not valid."""
    try:
        return [[*container.devices_ids] for container in pb.AllocateRequest.FromString(data).container_requests]
    except DecodeError:
        return None


def check(data: bytes) -> None:
    """Decode a request, and compare."""
    expected = by_protobuf(data)
    if expected is None:
        with pytest.raises(InvalidRequestError):
            allocate_request.decode(data)
    else:
        assert allocate_request.decode(data) == expected


@given(ENCODED)
def test_what_a_kubelet_sends_is_decoded(data: bytes) -> None:
    check(data)


@given(
    st.binary(max_size=40)
    | st.lists(st.sampled_from(b"\n\x00\x01\x02\x03\x04\x05\x80\x81\xffa"), max_size=12).map(bytes)
)
@example(b"\n\x05\n\x03ab")
@example(b"\n\x80\x00")
@example(b"\n\x84\x80\x00\n\x02ab")
@example(b"\n\x03\n\x01\xff")
@example(b"\n\x03\n\x03a\n\x00")  # the ID ends after its container, where another one would begin
@example(b"\n\x05\n\x03\xed\xa0\x80")  # half of a surrogate pair
@example(b"\n\x04\x12\x02ab")  # an unknown field of a container
@example(b"\n\x00\x10\x07")  # an unknown field of the request
@example(b"\n\x90\x01\n\x82\x01" + b"x" * 129 + b"\n\n\x09" + b"y" * 9)  # a length of two bytes
def test_any_other_request_is_decoded_or_refused_as_by_protobuf(data: bytes) -> None:
    check(data)


@given(ENCODED.filter(bool), st.data())
def test_a_request_that_was_cut_or_changed_is_decoded_or_refused_as_by_protobuf(
    encoded: bytes, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(encoded) - 1))
    check(encoded[:position])
    check(encoded[:position] + bytes([data.draw(st.integers(0, 255))]) + encoded[position + 1 :])
