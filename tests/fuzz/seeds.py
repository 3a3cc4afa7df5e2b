"""Seeds for the fuzzers: valid inputs, and words for the dictionaries."""

from __future__ import annotations

from typing import Final

from aosp_plugin.config.keys import KEYS
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from tests.documents import examples
from tests.fuzz.served import HEALTHY, UNHEALTHY

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""The connection preface of an HTTP/2 client, and its first frame."""


def of_configuration() -> tuple[list[bytes], list[bytes]]:
    """Return complete files, and words of files."""
    parts = ["version: v1", "resources:", "- ", "sets:", "size:", "stride:", "first:", "names:", "pattern:", "count:"]
    words = [*KEYS, *parts, "{set}/{name}", "&a ", "*a", "!!int ", "!!binary ", "<<: ", "0x", "1e9", "null", "on-start"]
    return [text.encode() for text in examples().values()], [word.encode() for word in words]


def of_wire() -> tuple[list[bytes], list[bytes]]:
    """Return requests with the byte that selects their RPC, and device IDs."""
    preferred = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=HEALTHY, must_include_deviceIDs=HEALTHY[:1], allocation_size=3
    )
    container = pb.ContainerAllocateRequest(devices_ids=HEALTHY[:3])
    unhealthy = pb.ContainerAllocateRequest(devices_ids=[UNHEALTHY])
    messages = [
        pb.Empty(),
        pb.PreferredAllocationRequest(container_requests=[preferred, preferred]),
        pb.AllocateRequest(container_requests=[container, container, unhealthy]),
        pb.PreStartContainerRequest(devices_ids=HEALTHY[:2]),
    ]
    requests = [bytes([choice]) + message.SerializeToString() for choice, message in enumerate(messages)]
    return [*requests, b"\xff" + PREFACE], [device.encode() for device in [*HEALTHY, UNHEALTHY]]
