"""What real peers answer, step by step: recorded by the suites in ``tests/e2e``, and replayed on the stand-ins.

``python -m tests.e2e.kubelet -k trace -s | python -m tests.simulation.traces`` writes what the suite has seen to
``traces/``; so do ``tests.e2e.apiserver -k trace``, and ``tests.e2e.kernel core -k same_steps -rP``.
"""

import asyncio
import ctypes
import itertools
import json
import os
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import RESOURCE_SLICES, ApiError, object_path
from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.tests.stub import fail, healthy
from tests.e2e.kubelet.probe import Probe

Steps = list[tuple[str, Any]]
"""What was done, and what came of it."""

DIRECTORY = Path(__file__).with_name("traces")
RESOURCE = "trace.test/device"
_LINE = "# trace "
_CREATED, _REMOVED = 0x100 | 0x80, 0x200 | 0x40
"""inotify(7): IN_CREATE and IN_MOVED_TO, IN_DELETE and IN_MOVED_FROM."""


def show(name: str, steps: Steps) -> None:
    """Print the lines of a trace."""
    for number, step in enumerate(steps):
        print(f"{_LINE}{name} {number} {json.dumps(step)}", flush=True)


def recorded(name: str) -> Steps:
    """Return a recorded trace."""
    lines = (DIRECTORY / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(step, outcome) for step, outcome in map(json.loads, lines)]


def differences(real: Steps, simulated: Steps) -> list[str]:
    """Return where two traces differ."""
    found = [f"{len(real)} steps, simulated {len(simulated)}"] if len(real) != len(simulated) else []
    pairs = zip(json.loads(json.dumps(real)), json.loads(json.dumps(simulated)), strict=False)
    return found + [f"{one[0]}: {one[1]!r}, simulated {other[1]!r}" for one, other in pairs if one != other]


def _write() -> None:
    """Write the traces in the output of suites, which is passed on."""
    traces: dict[str, list[str]] = {}
    for line in sys.stdin:
        print(line, end="")
        if _LINE in line:
            name, number, step = line.partition(_LINE)[2].split(" ", 2)
            traces[name] = [*traces.get(name, [])[: int(number)], step]  # the last one of several
    for name, lines in traces.items():
        (DIRECTORY / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


class DirectoryEvents:
    """The sockets that are created and removed in a directory of this machine."""

    def __init__(self, path: str) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK)
        assert self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _CREATED | _REMOVED) >= 0

    def seen(self) -> list[str]:
        """Return the events since the last call."""
        try:
            data, found = os.read(self._descriptor, 65536), []
        except BlockingIOError:
            return []
        while data:
            _, mask, _, size = struct.unpack_from("iIII", data)
            name = data[16 : 16 + size].rstrip(b"\0").decode()
            if name.endswith(".sock"):
                found.append(f"{'created' if mask & _CREATED else 'removed'} {name}")
            data = data[16 + size :]
        return found


def _grouped(events: list[str]) -> list[str]:
    """Return events in their order, but sorted where a peer has none: between others of the same kind."""
    groups = itertools.groupby(events, lambda event: event.partition(" ")[0])
    return [event for _, group in groups for event in sorted(group)]


class Kubelet(Protocol):
    """A kubelet as plugins use it, real or a stand-in."""

    @property
    def directory(self) -> str:
        """The directory of kubelet.sock."""

    async def counts(self, resource: str) -> tuple[int, int] | None:
        """Return capacity and allocatable of the node's status; None if it does not have the resource."""

    async def stop(self) -> None:
        """Stop the kubelet."""

    async def start(self) -> None:
        """Start the kubelet again."""


async def kubelet_steps(kubelet: Kubelet, events: Callable[[], list[str]], pause: float) -> Steps:
    """Return what a kubelet does to plugins and their directory; it has ``pause`` seconds to react."""
    steps: Steps = []

    async def note(step: str, outcome: Any = None) -> None:
        await asyncio.sleep(pause)
        counts = await kubelet.counts(RESOURCE)
        steps.append((step, {"outcome": outcome, "counts": list(counts or (0, 0)), "events": _grouped(events())}))

    events()
    async with (
        Probe(kubelet.directory, RESOURCE, healthy("a", "b"), socket="trace-1.sock") as first,
        Probe(kubelet.directory, RESOURCE, healthy("c", "d", "e"), socket="trace-2.sock") as second,
    ):
        absent = Probe(kubelet.directory, RESOURCE, socket="trace-3.sock")
        await note("two plugins serve")
        await note("one registers", await first.register())
        await note("what it was asked, first", first.calls[0])
        await note("what it was asked", sorted(first.calls))
        for name, health in (("all", "Unhealthy"), ("none", "Healthy")):
            first.send([*healthy("a"), pb.Device(ID="b", health=health)])
            await note(f"it has unhealthy devices: {name}")
        first.send(healthy("a"))
        await note("it has lost one")
        first.send([])
        await note("it has none")
        first.send(healthy("a", "b", "f", "g"))
        await note("it has four")
        await note("another version registers", await first.register(version="v1alpha1"))
        await note("a socket that does not exist is registered", (await absent.register()).partition(":")[0])
        second.hooks["GetDevicePluginOptions"] = fail("not today")
        await note("one without options registers", await second.register())
        second.hooks.clear()
        first.calls.clear()
        first.end_stream()
        await note("its stream ends")
        await note("what it was asked since", [*first.calls])
        await note("it registers again", await first.register())
        await note("the other one registers", await second.register())
        await note("the streams of both", [first.open_streams, second.open_streams])
        first.send(healthy("a"))
        await note("the first one sends a list")
        second.send(healthy("c"))
        await note("the second one sends a list")
        await kubelet.stop()
        await asyncio.sleep(pause)
        steps.append(
            ("the kubelet ends", {"streams": [first.open_streams, second.open_streams], "events": _grouped(events())})
        )
        await kubelet.start()
        await note("it starts again")
    return steps


async def api_steps(client: ApiClient) -> Steps:
    """Return what an API server answers to a driver that publishes slices."""
    steps: Steps = []
    path, missing = object_path(RESOURCE_SLICES, "trace-1"), object_path(RESOURCE_SLICES, "trace-2")
    selector = "spec.nodeName=trace,spec.driver=trace.test"

    async def note(step: str, work: Awaitable[Any], outcome: Callable[[Any], Any] = lambda _: "ok") -> Any:
        try:
            answer = await work
        except ApiError as error:
            steps.append((step, [error.status, error.reason]))
            return None
        steps.append((step, outcome(answer)))
        return answer

    def body(name: str, device: str = "phone1", **metadata: str) -> dict[str, Any]:
        pool = {"name": f"trace/{name}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "trace.test", "nodeName": "trace", "pool": pool, "devices": [{"name": device}]}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        return {**kind, "metadata": {"name": name, **metadata}, "spec": spec}

    seen: list[str] = []
    has_begun = asyncio.Event()

    async def watch() -> None:
        async for event in client.watch(RESOURCE_SLICES, field_selector=selector, resource_version="0"):
            if event.type != "BOOKMARK":
                devices = [device["name"] for device in event.object["spec"]["devices"]]
                seen.append(f"{event.type} {event.object['metadata']['name']} {devices}")
                has_begun.set()

    await note("get none", client.get(path))
    await note("dry run", client.create(RESOURCE_SLICES, body("trace-1"), dry_run=True))
    await note("get none after a dry run", client.get(path))
    await note("invalid", client.create(RESOURCE_SLICES, body("trace-1", "phone_1")))
    old = await note("create", client.create(RESOURCE_SLICES, body("trace-1")))
    await note("create again", client.create(RESOURCE_SLICES, body("trace-1")))
    watching = asyncio.get_running_loop().create_task(watch())
    await has_begun.wait()
    new = await note("update", client.update(path, {**old, "spec": body("trace-1", "phone2")["spec"]}))
    await note("update the old version", client.update(path, {**old, "spec": body("trace-1", "phone3")["spec"]}))
    unchanged = {"is_same": lambda it: it["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]}
    await note("update without a change", client.update(path, new), unchanged["is_same"])
    await note("update none", client.update(missing, body("trace-2", resourceVersion="1")))
    await note("create a second one", client.create(RESOURCE_SLICES, body("trace-2")))
    listed = client.list(RESOURCE_SLICES, field_selector=selector)
    await note("list", listed, lambda found: sorted(item["metadata"]["name"] for item in found))
    await note("delete another UID", client.delete(path, uid="other"))
    await note("delete the old version", client.delete(path, resource_version=old["metadata"]["resourceVersion"]))
    await note("delete", client.delete(path, uid=new["metadata"]["uid"]))
    await note("delete again", client.delete(path))
    await note("delete the second one", client.delete(missing))
    await asyncio.sleep(1.0)
    watching.cancel()
    steps.append(("what the watch saw", seen))
    return steps


if __name__ == "__main__":
    _write()
