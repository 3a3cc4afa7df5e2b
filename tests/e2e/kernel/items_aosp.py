"""Items: Android's own binder software in containers of runc and crun, with phones of both kinds.

The containers are created from Allocate responses, as in ``items_containers``. They have neither root nor a capability,
and the seccomp profile for phones.
``aosp`` says what runs in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver.host import has_selinux
from tests.e2e.common import oci
from tests.e2e.kernel import aosp, confinement, tenants
from tests.e2e.kernel.aosp import APP, SHELL, SYSTEM
from tests.e2e.kernel.containers import HOST_ID, RUNTIMES
from tests.e2e.kernel.item import Item, item, sentence
from tests.e2e.kernel.world import DIRECTORY
from tests.e2e.kubelet.processes import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from kubelet_standin import ContainerAllocation
    from tests.e2e.kernel.tenants import Kind
    from tests.e2e.kernel.world import World

RESOURCE: Final = "aosp.io/phone"
ROOT: Final = DIRECTORY / "android"
"""The root directory of the containers."""

_numbers = itertools.count()


class Container:
    """A phone's container without capabilities, run by a runtime from an Allocate response."""

    def __init__(
        self, runtime: str, allocation: ContainerAllocation, user: int, first_host_id: int | None = None
    ) -> None:
        """Start the container, whose first process runs as ``user``."""
        self.name = allocation.name
        self._runtime = runtime
        self._bundle = DIRECTORY / f"android-{next(_numbers)}"
        self._bundle.mkdir()
        spec = oci.spec(
            allocation,
            rootfs=str(ROOT),
            arguments=[aosp.COMMAND, allocation.name],
            cgroup=f"/{self._bundle.name}",
            first_host_id=first_host_id,
            capabilities=(),
            confinement=confinement.of_phone(),
        )
        spec["process"] |= {"user": {"uid": user, "gid": user}, "noNewPrivileges": True}
        (self._bundle / "config.json").write_text(json.dumps(spec))
        with self._output.open("wb") as output:
            command = [runtime, "run", "--bundle", str(self._bundle), self._bundle.name]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    @property
    def _output(self) -> Path:
        return self._bundle / "output"

    def execute(self, user: int, *words: str) -> str:
        """Run a program in the container as a user, and return its output."""
        return run(self._runtime, "exec", "--user", f"{user}:{user}", self._bundle.name, *words, seconds=600)

    def log(self) -> list[str]:
        """Return the lines that the container's processes have printed."""
        return self._output.read_text().splitlines()

    def end(self) -> None:
        """Kill the container's processes, and wait for their end."""
        run(self._runtime, "kill", self._bundle.name, "KILL")
        self._process.wait(60)
        shutil.rmtree(self._bundle)


@contextlib.contextmanager
def running(
    runtime: str, allocation: ContainerAllocation, user: int, first_host_id: int | None = None
) -> Iterator[Container]:
    """Run a phone's container as a user while the context lasts."""
    container = Container(runtime, allocation, user, first_host_id)
    try:
        yield container
    finally:
        container.end()


@contextlib.asynccontextmanager
async def started(world: World, *names: str) -> AsyncIterator[list[ContainerAllocation]]:
    """Admit a pod with a phone for each name, and end the pods after the context."""
    try:
        yield [await world.started(name, str(uuid.uuid4())) for name in names]
    finally:
        while world.admitted:
            await world.finish()


async def serve(world: World, kind: Kind) -> None:
    """The plugin advertises 4 phones, each with /dev/binder, /dev/hwbinder and /dev/vndbinder."""
    await world.stop()
    await asyncio.to_thread(tenants.new_devices, kind)
    await world.serve_with(f"{kind.configuration}recreate: on-start\n", resource=RESOURCE)
    await world.healthy(4)


async def works(world: World, runtime: str, first_host_id: int | None = None) -> None:
    """Android's service managers run in two phones as other users than root; its tools find only their own services.

    Its tests pass in the first. When its service manager dies, clients of the other notice nothing; then a container of
    the next user starts in it.
    """
    run_in = partial(running, runtime, first_host_id=first_host_id)
    async with started(world, "phone-a", "phone-b") as (first, second):
        with run_in(second, SHELL) as neighbour:
            with run_in(first, SYSTEM) as phone:
                await asyncio.to_thread(_phones, phone, neighbour)
            again = await world.kubelet.start_container(world.admitted[0], first.name)
            with run_in(again, APP) as phone:
                await asyncio.to_thread(aosp.works, phone, neighbour.name)
                await asyncio.to_thread(aosp.works, neighbour, phone.name)


def _phones(phone: Container, neighbour: Container) -> None:
    aosp.works(phone, neighbour.name)
    aosp.works(neighbour, phone.name)
    aosp.run_tests(phone)
    aosp.apart(phone, neighbour)


async def quick(world: World, runtime: str) -> None:
    """Android's service managers, tools and tests of the driver's interface work in a phone without capabilities."""
    assert has_selinux()
    async with started(world, "phone-a") as (allocation,):
        with running(runtime, allocation, SYSTEM) as phone:
            await asyncio.to_thread(aosp.works, phone, "phone-b")
            await asyncio.to_thread(aosp.run_tests, phone, aosp.QUICK)


async def unanswered(world: World, runtime: str) -> None:
    """Counter-example: without SELinux the driver refuses every call of Android's service manager, and only logs it."""
    async with started(world, "phone-a") as (allocation,):
        with running(runtime, allocation, SYSTEM) as phone:
            await asyncio.to_thread(aosp.unanswered, phone)


async def ended(world: World) -> None:
    """The plugin ends with exit code 0."""
    await world.stop()
    await asyncio.to_thread(tenants.remove_devices)


def prepare(part: Path) -> None:
    """Make the root directory of the containers."""
    aosp.prepare(ROOT, part)
    # runc and crun make mount points there as root of the user namespace.
    os.chown(ROOT, HOST_ID, HOST_ID)


def _items(kind: Kind) -> list[Item[World]]:
    def named(function: Callable[..., Awaitable[None]], prefix: str = "", **more: object) -> Item[World]:
        return Item(f"{kind.title}: {prefix}{sentence(function)}", partial(function, **more))

    return [
        named(serve, kind=kind),
        *(named(works, f"{runtime}: ", runtime=runtime) for runtime in RUNTIMES),
        *(named(works, f"{runtime}, user namespace: ", runtime=runtime, first_host_id=HOST_ID) for runtime in RUNTIMES),
    ]


ITEMS: Final[list[Item[World]]] = [*_items(tenants.FOUND), *_items(tenants.BINDERFS), item(ended)]
QUICK: Final[list[Item[World]]] = [
    Item(f"Android's binder: {sentence(serve)}", partial(serve, kind=tenants.BINDERFS)),
    Item(f"runc: {sentence(quick)}", partial(quick, runtime="runc")),
    Item(f"Android's binder: {sentence(ended)}", ended),
]
"""Of the core set."""
WITHOUT_SELINUX: Final[list[Item[World]]] = [
    Item(sentence(serve), partial(serve, kind=tenants.BINDERFS)),
    Item(f"runc: {sentence(unanswered)}", partial(unanswered, runtime="runc")),
    item(ended),
]
"""On a kernel that has no security context for a process."""
