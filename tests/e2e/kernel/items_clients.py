"""Items: binder software of others in containers of runc and crun, with phones of both kinds.

The containers are created from Allocate responses, as in ``items_containers``; ``tenants`` says what runs in them.
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

from tests.e2e.common import oci
from tests.e2e.common.report import say
from tests.e2e.kernel import confinement, tenants
from tests.e2e.kernel.client_parts import VERSIONS
from tests.e2e.kernel.containers import HOST_ID, RUNTIMES
from tests.e2e.kernel.item import Item, item, sentence
from tests.e2e.kernel.tenants import USERS, Kind, phone_command
from tests.e2e.kernel.world import DIRECTORY
from tests.e2e.kubelet.processes import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from kubelet_standin import ContainerAllocation
    from tests.e2e.kernel.world import World

RESOURCE: Final = "aosp.io/phone"
ROOT: Final = DIRECTORY / "clients"
"""The root directory of the containers."""

_numbers = itertools.count()


class Container:
    """A phone's container, run by a runtime from an Allocate response."""

    def __init__(
        self,
        runtime: str,
        allocation: ContainerAllocation,
        arguments: Sequence[str],
        first_host_id: int | None = None,
        *,
        root: Path = ROOT,
        user: int = 0,
    ) -> None:
        """Start the container, whose first process runs ``arguments``; a ``user`` but root has no capabilities."""
        self.name = allocation.name
        self._runtime = runtime
        self._bundle = DIRECTORY / f"clients-{next(_numbers)}"
        self._bundle.mkdir()
        capabilities = () if user else oci.CAPABILITIES
        spec = oci.spec(
            allocation,
            rootfs=str(root),
            arguments=arguments,
            cgroup=f"/{self._bundle.name}",
            first_host_id=first_host_id,
            capabilities=capabilities,
            confinement=confinement.of(capabilities),
        )
        spec["process"] |= {"user": {"uid": user, "gid": user}, "noNewPrivileges": user != 0}
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
    runtime: str, kind: Kind, allocation: ContainerAllocation, user: str, first_host_id: int | None = None
) -> Iterator[Container]:
    """Run a phone's container while the context lasts; its service manager and service run as ``user``."""
    container = Container(runtime, allocation, phone_command(kind, allocation.name, user), first_host_id)
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


async def works(world: World, runtime: str, kind: Kind, first_host_id: int | None = None) -> None:
    """In two phones rsb_hub and a service run; clients of rsbinder and libgbinder, another user, call only their own.

    Then one container starts again, and another user is its service manager.
    """
    run_in = partial(running, runtime, kind, first_host_id=first_host_id)
    async with started(world, "phone-a", "phone-b") as (first, second):
        with run_in(second, "system") as neighbour:
            with run_in(first, "system") as phone:
                await asyncio.to_thread(tenants.works, kind, phone, neighbour.name, USERS["system"])
                await asyncio.to_thread(tenants.works, kind, neighbour, phone.name, USERS["system"])
            again = await world.kubelet.start_container(world.admitted[0], first.name)
            with run_in(again, "shell") as phone:
                await asyncio.to_thread(tenants.works, kind, phone, neighbour.name, USERS["shell"])
                await asyncio.to_thread(tenants.alone, kind, neighbour)


async def ended(world: World) -> None:
    """The plugin ends with exit code 0."""
    await world.stop()
    await asyncio.to_thread(tenants.remove_devices)


def prepare(rsbinder: Path, gbinder: Path) -> None:
    """Make the root directory of the containers."""
    for part in (rsbinder, gbinder):
        say(f"{part.name}: {' '.join((part / VERSIONS).read_text().split())}")
    tenants.assemble(ROOT, rsbinder, gbinder)
    # runc and crun make mount points there as root of the user namespace.
    os.chown(ROOT, HOST_ID, HOST_ID)


def _items(kind: Kind) -> list[Item[World]]:
    def named(prefix: str, function: Callable[..., Awaitable[None]], **more: object) -> Item[World]:
        title = f"{kind.title}: {prefix}{sentence(function)}"
        return Item(title, partial(function, kind=kind, **more))

    return [
        named("", serve),
        *(named(f"{runtime}: ", works, runtime=runtime) for runtime in RUNTIMES),
        *(named(f"{runtime}, user namespace: ", works, runtime=runtime, first_host_id=HOST_ID) for runtime in RUNTIMES),
    ]


ITEMS: Final[list[Item[World]]] = [*_items(tenants.FOUND), *_items(tenants.BINDERFS), item(ended)]
