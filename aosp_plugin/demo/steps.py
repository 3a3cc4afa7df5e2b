"""``aosp-plugin demo`` without ``--stay``: what the plugin does, step by step.

The plugin is the real one, in a process of its own and on real unix sockets. Its phones are empty files, and its
kubelet is ``kubelet_standin``. The demo verifies each step on the kubelet's side; if a step fails, it exits with 1.
"""

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

import click

from aosp_plugin.demo.node import BINDER_DEVICES, RESOURCE, START_TIMEOUT, DemoError, Host, PluginProcess
from aosp_plugin.framework.timing import background_task
from kubelet_standin import AdmissionError, Container, ContainerAllocation, Kubelet, Pod

_DONE = click.style("✓", fg="green")

PODS = tuple(Pod(name, [Container("android", {RESOURCE: 1})]) for name in ("phone-a", "phone-b"))


async def demo(phones: int) -> int:
    """Run the demo with this number of stand-in phones, and return the exit code."""
    started = time.monotonic()
    logging.disable()  # of the stand-in kubelet; the plugin is another process
    with tempfile.TemporaryDirectory(prefix="aosp-demo-") as directory:
        log: list[str] = []
        try:
            await _show(Host(directory, phones), log.append)
        except (DemoError, TimeoutError, AdmissionError) as error:
            click.echo(f"{click.style('✗', fg='red', bold=True)} failed: {error}\nLog of the plugin:")
            click.echo("\n".join(log))
            return 1
    click.echo(f"{_DONE} done in {time.monotonic() - started:.1f} s")
    return 0


async def _show(host: Host, log: Callable[[str], object]) -> None:
    phones = len(host.phones)
    with _step(f"create {phones} stand-in phones, each with {', '.join(BINDER_DEVICES)}"):
        host.create()
        host.configure(listen="", pod_resources_socket="")
    async with Kubelet(host.kubelet_dir) as kubelet, PluginProcess(["--config", host.configuration], log=log) as plugin:
        await _registration(kubelet, plugin, phones)
        admitted = await _pods(kubelet)
        await _hotplug(kubelet, host)
        await _restart(kubelet, phones, admitted)
        await _end(kubelet, plugin)


async def _registration(kubelet: Kubelet, plugin: PluginProcess, phones: int) -> None:
    with _step("the plugin registers, and the kubelet lists its phones"):
        listed = kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == phones, START_TIMEOUT)
        async with background_task(listed) as happens, background_task(plugin.exited()) as exits:
            await asyncio.wait((happens, exits), return_when=asyncio.FIRST_COMPLETED)
            if not happens.done():
                raise TimeoutError(f"the plugin exited with {exits.result()}")
            happens.result()
    registration = kubelet.registrations[-1]
    view = kubelet.resource(RESOURCE)
    names = list(view.devices)
    click.echo(
        f"    Register: version={registration.version} resource_name={registration.resource_name} "
        f"endpoint={registration.endpoint}\n"
        f"    ListAndWatch: {view.last_message_size} bytes; {names[0]}, {names[1]} … {names[-1]}\n"
        f"    node status: capacity {view.capacity}, allocatable {view.allocatable}"
    )


async def _pods(kubelet: Kubelet) -> dict[str, Mapping[str, ContainerAllocation]]:
    admitted: dict[str, Mapping[str, ContainerAllocation]] = {}
    for pod in PODS:
        with _step(f"pod {pod.name} requests {RESOURCE}: 1"):
            admitted[pod.name] = (await kubelet.admit(pod)).containers
        for name, container in admitted[pod.name].items():
            click.echo(f"    container {name}\n{_table(container)}")
    allocations = [allocation for containers in admitted.values() for allocation in containers.values()]
    ids = [device for allocation in allocations for device in allocation.device_ids[RESOURCE]]
    _expect(len(ids) == len(set(ids)) == len(PODS), f"pods share phones: {ids}")
    return admitted


async def _hotplug(kubelet: Kubelet, host: Host) -> None:
    phone, device = host.phones[-1], BINDER_DEVICES[1]
    with _step(f"{device} of {phone} is removed: the kubelet lists {phone} as Unhealthy"):
        host.remove(phone, [device])
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).devices[phone] == "Unhealthy", START_TIMEOUT)
    view = kubelet.resource(RESOURCE)
    click.echo(f"    node status: capacity {view.capacity}, allocatable {view.allocatable}")
    with _step(f"{device} of {phone} is back: the kubelet lists {phone} as Healthy"):
        host.add(phone, [device])
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).devices[phone] == "Healthy", START_TIMEOUT)
    allocatable = kubelet.resource(RESOURCE).allocatable
    _expect(allocatable == len(host.phones), f"{allocatable} of {len(host.phones)} phones are allocatable")


async def _restart(kubelet: Kubelet, phones: int, admitted: Mapping[str, Mapping[str, ContainerAllocation]]) -> None:
    before = kubelet.registrations[-1]
    with _step("the kubelet restarts: the plugin registers again"):
        await kubelet.restart()
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == phones, START_TIMEOUT)
    after = kubelet.registrations[-1]
    _expect(after.endpoint != before.endpoint, f"the new registration has the old socket {before.endpoint}")
    click.echo(f"    Register: endpoint={after.endpoint} (before: {before.endpoint})")
    with _step("both pods keep their phones"):
        for pod in PODS:
            containers = (await kubelet.admit(pod)).containers
            _expect(containers == admitted[pod.name], f"{pod.name} has another phone: {containers}")


async def _end(kubelet: Kubelet, plugin: PluginProcess) -> None:
    with _step("SIGTERM stops the plugin, and its socket is removed"):
        code = await plugin.stop()
    _expect(code == 0, f"the plugin exited with {code}")
    sockets = [name for name in os.listdir(kubelet.directory) if name.startswith("aosp-") and name.endswith(".sock")]
    _expect(not sockets, f"the plugin left its socket: {sockets}")


def _table(container: ContainerAllocation) -> str:
    """Return a line for each device, mount and environment variable of a container."""
    rows = [("device", node.container_path, f"{node.permissions} from {node.host_path}") for node in container.devices]
    rows += [
        ("mount", mount.container_path, f"{'ro' if mount.read_only else 'rw'} from {mount.host_path}")
        for mount in container.mounts
    ]
    rows += [("env", name, value) for name, value in sorted(container.envs.items())]
    width = max(len(name) for _, name, _ in rows)
    return "\n".join(f"      {kind:6}  {name:{width}}  {value}" for kind, name, value in rows)


@contextlib.contextmanager
def _step(title: str) -> Iterator[None]:
    """Print a step with its duration after it succeeded. A TimeoutError becomes a DemoError with the title."""
    started = time.monotonic()
    try:
        yield
    except TimeoutError as error:
        raise DemoError(f"{title}: {error}") from error
    duration = click.style(f"({(time.monotonic() - started) * 1000:.0f} ms)", dim=True)
    click.echo(f"{_DONE} {title} {duration}")


def _expect(condition: bool, failure: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise DemoError(failure)
