"""Android's own binder software in containers of runc and crun, with phones of both kinds.

The containers are created from Allocate responses, as in ``test_containers``. They have neither root nor a capability,
and the seccomp profile for phones.
``aosp`` says what runs in them.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import has_selinux
from aosp_plugin.config.keys import Phones
from kubelet_standin import ContainerAllocation
from tests.e2e.common import oci
from tests.e2e.common.processes import run
from tests.e2e.kernel import aosp, confinement
from tests.e2e.kernel.aosp import APP, SHELL, SYSTEM
from tests.e2e.kernel.containers import HOST_ID
from tests.e2e.kernel.phones import RESOURCE
from tests.e2e.kernel.world import COMPAT, DIRECTORY, World, checked_device_tool, part
from tests.e2e.kubelet.node import device_tool

ROOT: Final = DIRECTORY / "android"
"""The root directory of the containers."""

_FOUND: Final = (
    "resource_name: aosp.io/phone\nsets: {size: 3}\ncontainer_paths: [/dev/binder, /dev/hwbinder, /dev/vndbinder]\n"
)
"""The configuration of 4 phones: of 12 devices in a binderfs that hack/binder_devices.py mounted."""
_BINDERFS: Final = "phones: {count: 4}\n"
"""Likewise, with a binderfs each."""
_WITH_BINDERFS: Final = pytest.mark.parametrize("served", [_BINDERFS], indirect=True, ids=["binderfs"])

pytestmark = pytest.mark.usefixtures("served")
_numbers = itertools.count()


class Container:
    """A phone's container without capabilities, run by a runtime from an Allocate response."""

    def __init__(
        self,
        runtime: str,
        allocation: ContainerAllocation,
        user: int,
        first_host_id: int | None = None,
        bits: str = "",
    ) -> None:
        """Start the container, whose first process runs as ``user``, with 32-bit programs too if ``bits`` says so."""
        self.name = allocation.name
        self._runtime = runtime
        self._bundle = DIRECTORY / f"android-{next(_numbers)}"
        self._bundle.mkdir()
        spec = oci.spec(
            allocation,
            rootfs=str(ROOT),
            arguments=[aosp.COMMAND, allocation.name, bits],
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


@pytest.fixture(scope="session")
def root(shared_world: World) -> None:
    """Make the root directory of the containers, in the directory of the shared world."""
    aosp.prepare(ROOT, part("android"))
    # runc and crun make mount points there as root of the user namespace.
    os.chown(ROOT, HOST_ID, HOST_ID)


@pytest.fixture(scope="session")
def compat(root: None) -> None:
    """Add the 32-bit programs to it."""
    aosp.add_compat(ROOT, part("android32"))


@pytest.fixture(scope="module", params=(_FOUND, _BINDERFS), ids=("found", "binderfs"))
async def served(request: pytest.FixtureRequest, shared_world: World, root: None) -> AsyncIterator[None]:
    """Serve 4 phones, each with /dev/binder, /dev/hwbinder and /dev/vndbinder."""
    await shared_world.stop()
    await asyncio.to_thread(_remove_devices)
    if request.param == _FOUND:
        await checked_device_tool("create", "--count", "12")
    await shared_world.serve_with(f"{request.param}recreate: on-start\n", resource=RESOURCE)
    await shared_world.healthy(4)
    yield
    await shared_world.stop()
    await asyncio.to_thread(_remove_devices)


def _remove_devices() -> None:
    """Remove the devices of both kinds. The plugin has ended."""
    device_tool("delete")
    for directory in Path(Phones(count=1).directory).glob("*"):
        binderfs.unmount(str(directory))
        directory.rmdir()


@contextlib.contextmanager
def running(
    runtime: str, allocation: ContainerAllocation, user: int, first_host_id: int | None = None, bits: str = ""
) -> Iterator[Container]:
    """Run a phone's container as a user while the context lasts."""
    container = Container(runtime, allocation, user, first_host_id, bits)
    try:
        yield container
    finally:
        container.end()


@pytest.mark.parametrize("first_host_id", [None, HOST_ID], ids=["host-users", "user-namespace"])
async def test_works(world: World, runtime: str, first_host_id: int | None) -> None:
    """Android's service managers run in two phones as other users than root; its tools find only their own services.

    Its tests pass in the first. When its service manager dies, clients of the other notice nothing; then a container of
    the next user starts in it.
    """
    run_in = partial(running, runtime, first_host_id=first_host_id)
    first, second = [await world.started(name, str(uuid.uuid4())) for name in ("phone-a", "phone-b")]
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


@pytest.mark.core
@_WITH_BINDERFS
async def test_quick(world: World, runtime: str) -> None:
    """Android's service managers, tools and tests of the driver's interface work in a phone without capabilities."""
    assert has_selinux()
    with running(runtime, await world.started("phone-a"), SYSTEM) as phone:
        await asyncio.to_thread(aosp.works, phone, "phone-b")
        await asyncio.to_thread(aosp.run_tests, phone, aosp.QUICK)


@pytest.mark.core
@_WITH_BINDERFS
@pytest.mark.usefixtures("compat")
async def test_compat(world: World, runtime: str) -> None:
    """A 64-bit service manager has a 32-bit service: tools of both find it in their phone; 32-bit tests pass."""
    with running(runtime, await world.started("phone-a"), SYSTEM, bits=COMPAT) as phone:
        await asyncio.to_thread(aosp.works, phone, "phone-b")
        await asyncio.to_thread(aosp.works, phone, "phone-b", bits=COMPAT)
        await asyncio.to_thread(aosp.run_tests, phone, aosp.QUICK, COMPAT)


@_WITH_BINDERFS
@pytest.mark.usefixtures("compat")
async def test_compat_tests(world: World) -> None:
    """All of Android's tests pass with 32 bits, and with a client of 64 bits and servers of 32, and the reverse."""
    with running("runc", await world.started("phone-a"), SYSTEM, bits=COMPAT) as phone:
        await asyncio.to_thread(aosp.registered, phone)
        await asyncio.to_thread(aosp.run_tests, phone, bits=COMPAT)
        await asyncio.to_thread(aosp.across, phone)


@_WITH_BINDERFS
async def test_unanswered(world: World) -> None:
    """Counter-example: without SELinux the driver refuses every call of Android's service manager, and only logs it."""
    with running("runc", await world.started("phone-a"), SYSTEM) as phone:
        await asyncio.to_thread(aosp.unanswered, phone)
