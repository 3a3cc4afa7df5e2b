"""``aosp-plugin demo``: the whole plugin on one machine, against the stand-in kubelet and stand-in nodes.

The plugin is the real one, in a process of its own and over real unix sockets; only what surrounds it is made up:
plain files for nodes, ``aosp_plugin.testing`` for the kubelet. Each step is checked from the kubelet's side, and one
that did not happen ends the demo with exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import click

from aosp_plugin.errors import PluginError
from aosp_plugin.framework.aio import background_task
from aosp_plugin.testing import AdmissionError, Container, Kubelet, Pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
    from typing import BinaryIO

    from aosp_plugin.testing import ContainerAllocation, Mount

RESOURCE = "aosp.io/binder"
PATIENCE = 20.0
"""Seconds for a step to happen, which takes a small part of one unless the machine is very busy."""

_DONE = click.style("✓", fg="green")

PODS = (
    Pod("phone-1", [Container("android", {RESOURCE: 3})]),
    Pod("phone-2", [Container("android", {RESOURCE: 3}), Container("agent", {RESOURCE: 1})]),
)


class DemoError(PluginError):
    """A step of the demo did not happen."""


async def demo(*, nodes: int, keep: bool) -> int:
    """Show every step with ``nodes`` stand-in nodes; return the exit code. ``keep`` leaves the files in place."""
    started = time.monotonic()
    with _directory(keep=keep) as directory:
        try:
            await _show(directory, nodes)
        except (DemoError, TimeoutError, AdmissionError) as error:
            click.echo(f"{click.style('✗', fg='red', bold=True)} this did not happen: {error}")
            click.echo(f"The plugin's log:\n{_log(directory)}")
            return 1
    click.echo(f"{_DONE} done in {time.monotonic() - started:.1f} s")
    return 0


async def _show(directory: str, nodes: int) -> None:
    device_dir = os.path.join(directory, "dev")
    with _step(f"{nodes} stand-in nodes in {device_dir}"):
        _make_nodes(directory, nodes)
    _log_kubelet(directory)
    async with Kubelet(os.path.join(directory, "kubelet")) as kubelet, _plugin(directory) as plugin:
        await _registration(kubelet, plugin, nodes)
        admitted = await _pods(kubelet)
        await _hotplug(kubelet, device_dir, nodes)
        await _restart(kubelet, nodes, admitted)
        await _end(kubelet, plugin)


async def _registration(kubelet: Kubelet, plugin: asyncio.subprocess.Process, nodes: int) -> None:
    with _step("the plugin registers, and the kubelet lists its devices"):
        listed = kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == nodes, PATIENCE)
        await _while_it_runs(plugin, listed)
    seen = kubelet.registrations[-1]
    view = kubelet.resource(RESOURCE)
    names = list(view.devices)
    click.echo(
        f"    Register: version={seen.version} resource_name={seen.resource_name} endpoint={seen.endpoint}\n"
        f"    ListAndWatch: {view.last_message_size} bytes; {names[0]}, {names[1]} … {names[-1]}\n"
        f"    node status: capacity {view.capacity}, allocatable {view.allocatable}"
    )


async def _pods(kubelet: Kubelet) -> dict[str, Mapping[str, ContainerAllocation]]:
    admitted: dict[str, Mapping[str, ContainerAllocation]] = {}
    for pod in PODS:
        wants = ", ".join(f"{container.name}: {container.limits[RESOURCE]}" for container in pod.containers)
        with _step(f"pod {pod.name} asks for {RESOURCE} ({wants})"):
            admitted[pod.name] = (await kubelet.admit(pod)).containers
        for name, container in admitted[pod.name].items():
            click.echo(f"    container {name}\n{_table(container)}")
    given = [device for pod in admitted.values() for one in pod.values() for device in one.device_ids[RESOURCE]]
    _expect(len(given) == len(set(given)) == 7, f"no two containers share a node, but they got {given}")  # noqa: PLR2004
    return admitted


async def _hotplug(kubelet: Kubelet, device_dir: str, nodes: int) -> None:
    name = f"aosp_binder{nodes - 1}"
    with _step(f"{name} vanishes: the kubelet has it as Unhealthy"):
        os.unlink(os.path.join(device_dir, name))
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).devices[name] == "Unhealthy", PATIENCE)
    view = kubelet.resource(RESOURCE)
    click.echo(f"    node status: capacity {view.capacity}, allocatable {view.allocatable}")
    with _step(f"{name} comes back: Healthy again"):
        _make_node(device_dir, name)
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).devices[name] == "Healthy", PATIENCE)
    _expect(kubelet.resource(RESOURCE).allocatable == nodes, "every node can be allocated again")


async def _restart(kubelet: Kubelet, nodes: int, admitted: Mapping[str, Mapping[str, ContainerAllocation]]) -> None:
    before = kubelet.registrations[-1]
    with _step("the kubelet restarts: the plugin registers by itself"):
        await kubelet.restart()
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == nodes, PATIENCE)
    after = kubelet.registrations[-1]
    _expect(after.endpoint != before.endpoint, "a new registration has a new socket")
    click.echo(f"    Register: endpoint={after.endpoint} (was {before.endpoint})")
    with _step("both pods keep what they have"):
        for pod in PODS:
            again = (await kubelet.admit(pod)).containers
            _expect(again == admitted[pod.name], f"{pod.name} was given {again}")


async def _end(kubelet: Kubelet, plugin: asyncio.subprocess.Process) -> None:
    with _step("SIGTERM ends the plugin, and its socket is gone"):
        plugin.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(plugin.wait(), PATIENCE)
    _expect(code == 0, f"the plugin ends with 0, but it was {code}")
    left = [name for name in os.listdir(kubelet.directory) if name.startswith("aosp-")]
    _expect(not left, f"no socket is left, but there is {left}")


async def _while_it_runs(plugin: asyncio.subprocess.Process, step: Coroutine[None, None, None]) -> None:
    """Wait for a step, unless the plugin ends before. Raises TimeoutError."""
    async with background_task(step) as happens, background_task(plugin.wait()) as ends:
        await asyncio.wait((happens, ends), return_when=asyncio.FIRST_COMPLETED)
        if not happens.done():
            raise TimeoutError(f"it ended with {plugin.returncode}")
        await happens


def _table(container: ContainerAllocation) -> str:
    """Return all that a container gets, a line for each device, mount and variable."""
    rows = [
        *(("device", one.container_path, f"{one.permissions} from {one.host_path}") for one in container.devices),
        *(("mount", one.container_path, f"{_mode(one)} from {one.host_path}") for one in container.mounts),
        *(("env", name, value) for name, value in sorted(container.envs.items())),
    ]
    width = max(len(name) for _, name, _ in rows)
    return "\n".join(f"      {kind:6}  {name:{width}}  {value}" for kind, name, value in rows)


def _mode(mount: Mount) -> str:
    return "ro" if mount.read_only else "rw"


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    """Say what is to happen; once it has, say so and how long it took."""
    started = time.monotonic()
    try:
        yield
    except TimeoutError as error:
        raise DemoError(f"{what}: {error}") from error
    took = click.style(f"({(time.monotonic() - started) * 1000:.0f} ms)", dim=True)
    click.echo(f"{_DONE} {what} {took}")


def _expect(condition: bool, what: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise DemoError(what)


@contextlib.contextmanager
def _directory(*, keep: bool) -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="aosp-demo-")
    try:
        yield directory
    finally:
        if keep:
            click.echo(f"kept: {directory}")
        else:
            shutil.rmtree(directory)


def _make_nodes(directory: str, nodes: int) -> None:
    """Make the nodes, and what every container shares, as a host with binder would have them."""
    for name in ("dev", "binderfs"):
        os.mkdir(os.path.join(directory, name))
    _make_node(directory, "ashmem")
    for number in range(nodes):
        _make_node(os.path.join(directory, "dev"), f"aosp_binder{number}")


def _make_node(directory: str, name: str) -> None:
    with open(os.path.join(directory, name), "xb"):
        pass


@contextlib.asynccontextmanager
async def _plugin(directory: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``aosp-plugin serve`` as a process; its log goes to a file."""
    shared = {
        "AOSP_PLUGIN_SHARED_MOUNTS": f"{directory}/binderfs:/dev/binderfs",
        "AOSP_PLUGIN_SHARED_DEVICES": f"{directory}/ashmem:/dev/ashmem",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AOSP_PLUGIN_")}
    flags = ["--device-dir", f"{directory}/dev", "--kubelet-dir", f"{directory}/kubelet", "--verify", "file"]
    command = [sys.executable, "-m", "aosp_plugin", "serve", *flags, "--listen", ""]
    with _open_log(directory) as log:
        process = await asyncio.create_subprocess_exec(*command, env=inherited | shared, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _log_kubelet(directory: str) -> None:
    """Have the stand-in kubelet log into a file of its own, and not into the demo."""
    logger = logging.getLogger("aosp_plugin.testing")
    logger.addHandler(logging.FileHandler(os.path.join(directory, "kubelet.log")))
    logger.propagate = False


def _open_log(directory: str) -> BinaryIO:
    return open(os.path.join(directory, "plugin.log"), "wb")


def _log(directory: str) -> str:
    try:
        with open(os.path.join(directory, "plugin.log"), encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return "(it did not start)"
