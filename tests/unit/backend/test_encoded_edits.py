"""The encoded answer to Allocate has what protobuf would encode, whatever was encoded before."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aosp_plugin.backend.container_edits import AllocatedDevice, EditsBuilder
from aosp_plugin.backend.encoded_edits import EncodedEditsBuilder
from aosp_plugin.backend.shared_paths import SharedFiles
from aosp_plugin.binder.devices.spread import Spread
from aosp_plugin.binder.discovery.binder_device import BinderDevice, Identity, Kind
from aosp_plugin.config import OWN_BINDERFS, Isolation, Phones, Resource
from aosp_plugin.errors import InvalidRequestError
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.deviceplugin import answers
from aosp_plugin.framework.edits import ContainerEdits, DeviceNode, Mount


def by_protobuf(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    """Return the response for a container."""
    return pb.ContainerAllocateResponse(
        envs=edits.environment,
        mounts=[pb.Mount(**mount._asdict()) for mount in edits.mounts],
        devices=[pb.DeviceSpec(**device._asdict()) for device in edits.devices],
        annotations=edits.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200) | st.just("x" * 20_000)
MAPS = st.dictionaries(TEXTS, TEXTS, max_size=3)


@given(
    st.builds(
        ContainerEdits,
        st.lists(st.builds(DeviceNode, TEXTS, TEXTS, TEXTS), max_size=4),
        st.lists(st.builds(Mount, TEXTS, TEXTS, st.booleans()), max_size=4),
        MAPS,
        st.lists(TEXTS, max_size=3),
        MAPS,
    )
)
def test_any_edits_are_encoded_as_by_protobuf(edits: ContainerEdits) -> None:
    """Here every field has all texts, also empty ones and those whose length has several bytes."""
    assert pb.ContainerAllocateResponse.FromString(answers.encode(edits)) == by_protobuf(edits)


def test_containers_are_separate_and_in_order() -> None:
    containers = [by_protobuf(ContainerEdits(environment={"A": str(number) * 300})) for number in range(3)]
    encoded = answers.response(container.SerializeToString() for container in containers)
    assert pb.AllocateResponse.FromString(encoded) == pb.AllocateResponse(container_responses=containers)


RESOURCES = st.builds(
    Resource,
    container_paths=st.sampled_from([(), ("/dev/binder",), ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")]),
    shared_mounts=st.sampled_from(
        [(), (f"{OWN_BINDERFS}:/dev/binderfs",), ("/srv/a", f"{OWN_BINDERFS}:/binders", "/srv/b:/b")]
    ),
    isolation=st.sampled_from(Isolation),
    permissions=st.sampled_from(["rw", "rwm"]),
    path_env=st.sampled_from(["", "/bin"]),
    visible_devices_env=st.sampled_from(["", "DEVICES", "PATH"]),
    device_list=st.sampled_from(
        [
            ("envvar", "volume-mounts"),
            ("volume-mounts",),
            ("envvar", "volume-mounts", "cdi-cri"),
            ("cdi-annotations",),
        ]
    ),
    phones=st.sampled_from([None, None, Phones(count=9)]),
)

SHARED = st.builds(
    SharedFiles,
    st.frozensets(st.sampled_from(["/srv/a", "/srv/b"])),
    st.sampled_from([(), (("/dev/dri", "/dev/dri"),), (("/dev/a", "/dev/b"), ("/dev/fuse", "/dev/fuse"))]),
    st.just(()),
    st.just(Spread()),
)


@st.composite
def containers(draw: st.DrawFn) -> list[AllocatedDevice]:
    """Return the devices of a container: one to three, of up to three binder devices of any kind."""
    numbers = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True))
    kinds, directories = st.sampled_from([Kind.BINDERFS, Kind.CDEV]), st.sampled_from(["", "/dev/binderfs", "/run/b"])
    return [
        AllocatedDevice(
            f"set{number}",
            [
                BinderDevice(
                    f"binder{number}{member}",
                    draw(st.sampled_from(["/dev", "/run/devices"])) + f"/binder{number}{member}",
                    draw(kinds),
                    Identity(1, 2, 3),
                    draw(directories),
                )
                for member in range(draw(st.integers(1, 3)))
            ],
            draw(st.sampled_from(["", "/dev/dri/renderD128", "/dev/dri/renderD129"])),
        )
        for number in numbers
    ]


def outcome(call: Any, *arguments: Any) -> Any:
    """Return the result of a call, or its message if the request is refused."""
    try:
        return call(*arguments)
    except InvalidRequestError as error:
        return str(error)


@given(RESOURCES, st.lists(st.tuples(containers(), SHARED), min_size=1, max_size=5))
def test_each_container_gets_what_protobuf_would_encode(
    resource: Resource, requests: list[tuple[list[AllocatedDevice], SharedFiles]]
) -> None:
    """Later containers get the same devices, others, and devices of the same ID that have changed."""
    builder, encoded = EditsBuilder(resource), EncodedEditsBuilder(resource)
    for devices, shared in itertools.chain(requests, requests):
        expected = outcome(builder.for_container, devices, shared)
        answer = outcome(encoded.encoded, devices, shared)
        if isinstance(expected, str):
            assert answer == expected
        else:
            assert pb.ContainerAllocateResponse.FromString(answer) == by_protobuf(expected)
