"""In the guest: the plugin as a process, the stand-in kubelet, and commands for the tests."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from kubelet_standin import Container, ContainerAllocation, Kubelet, Pod
from tests.e2e.common import processes, waiting
from tests.e2e.common.device_tool import COMMAND
from tests.e2e.common.packages import MissingError
from tests.e2e.common.waiting import PATIENCE

RESOURCE: Final = "aosp.io/binder"
PROJECT: Final = Path(__file__).resolve().parents[3]
DIRECTORY: Final = Path("/run/e2e")
COMPAT: Final = "32"
"""What the names of parts with 32-bit programs end with."""
CONFIGURATION: Final = DIRECTORY / "config.yaml"


class Result(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


async def run(*command: str) -> Result:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return Result(process.returncode or 0, out.decode(), err.decode())


async def checked(*command: str) -> str:
    """Run a command to its end, and return its output. Raises AssertionError if it fails."""
    return await asyncio.to_thread(processes.run, *command, seconds=300)


async def checked_device_tool(*arguments: str) -> None:
    """Run hack/binder_devices.py. Raises AssertionError if it fails."""
    await checked(*COMMAND, *arguments)


@dataclass
class World:
    """The state that the tests of a boot share."""

    kubelet: Kubelet
    process: asyncio.subprocess.Process | None = None
    log: Path = DIRECTORY / "serve.log"
    admitted: list[Pod] = field(default_factory=list)
    resource: str = RESOURCE
    """The resource of the plugin that runs."""

    async def serve(self, *arguments: str, resource: str = RESOURCE, wrapper: Sequence[str] = ()) -> None:
        """Start ``aosp-plugin serve``, after stopping a running one; ``wrapper`` is a command that runs commands."""
        await self.stop()
        self.resource = resource
        await self._start(*arguments, wrapper=wrapper)

    async def _start(self, *arguments: str, wrapper: Sequence[str]) -> None:
        self.log.unlink(missing_ok=True)
        command = (*wrapper, sys.executable, "-m", "aosp_plugin", "serve", "--kubelet-dir", self.kubelet.directory)
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(*command, *arguments, stderr=log)

    async def serve_with(self, configuration: str, *, resource: str = RESOURCE, wrapper: Sequence[str] = ()) -> None:
        """Start the plugin with a configuration file."""
        self.configure(configuration)
        await self.serve("--config", str(CONFIGURATION), resource=resource, wrapper=wrapper)

    def configure(self, configuration: str) -> None:
        """Write the configuration file, for the next start or reload."""
        CONFIGURATION.write_text(f"version: v1\n{configuration}")

    async def start_again(self, *, wrapper: Sequence[str] = ()) -> None:
        """Start the plugin with the configuration file after its end; pods keep running."""
        await self._start("--config", str(CONFIGURATION), wrapper=wrapper)

    async def stop(self) -> None:
        """End all pods, and stop the plugin, which must exit with 0.

        Its records go as well, as when it is uninstalled: nobody answers here which devices pods have.
        """
        await self.finish_all()
        await self.stop_plugin()
        await asyncio.to_thread(shutil.rmtree, Path(self.kubelet.directory) / "aosp-plugin", ignore_errors=True)

    async def stop_plugin(self) -> None:
        """Stop the plugin, which must exit with 0. Pods keep running."""
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            code = await process.wait()
        assert code == 0, f"serve ended with {code}: {self.logged()[-500:]}"

    async def reload(self) -> None:
        """Send the plugin SIGHUP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def open_files(self) -> int:
        """Return the number of the plugin's file descriptors."""
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def logged(self) -> str:
        """Return the plugin's log."""
        return self.log.read_text(encoding="utf-8")

    async def healthy(self, count: int, unhealthy: int = 0) -> None:
        """Wait until the kubelet has these numbers of healthy and unhealthy devices."""
        expected = (True, count, count + unhealthy)

        def reached(kubelet: Kubelet) -> bool:
            view = kubelet.resource(self.resource)
            return (view.connected, view.allocatable, view.capacity) == expected

        try:
            await self.kubelet.wait_for(reached, PATIENCE)
        except TimeoutError as error:
            raise AssertionError(f"{error}; the plugin's log: {self.logged()[-400:]}") from error

    async def admit(self, name: str, count: int, uid: str = "") -> ContainerAllocation:
        """Admit a pod with one container that requests ``count`` devices, and return its allocation.

        Without a ``uid`` all pods of a name have the same, and a pod gets the devices of the last one.
        """
        pod = Pod(name, [Container(name, {self.resource: count})], uid=uid)
        admitted = await self.kubelet.admit(pod)
        self.admitted.append(pod)
        return admitted.containers[name]

    async def started(self, name: str, uid: str = "") -> ContainerAllocation:
        """Admit a pod that requests one device, and call PreStartContainer."""
        await self.admit(name, 1, uid)
        return await self.kubelet.start_container(self.admitted[-1], name)

    async def finish(self) -> None:
        """End the pod that was admitted last; its processes may keep running."""
        await self.kubelet.finish(self.admitted.pop())

    async def finish_all(self) -> None:
        """End all pods."""
        while self.admitted:
            await self.finish()


async def until(holds: Callable[[], object], what: str) -> None:
    """Poll until the condition holds, while the stand-in kubelet serves. Raises AssertionError."""
    await asyncio.to_thread(waiting.until, holds, what)


def variable(part: str) -> str:
    """Return the name of the environment variable with the path of a part, in the guest."""
    return f"E2E_{part.upper()}"


def part(name: str) -> Path:
    """Return the path of a part of the guest. Skips the test if the machine could not get it."""
    value = os.environ[variable(name)]
    if not value.startswith("/"):
        raise MissingError(value)
    return Path(value)


def own(allocation: ContainerAllocation) -> list[str]:
    """Return the names of a container's binder devices, by number."""
    return allocation.envs["BINDER_VISIBLE_DEVICES"].split(",")


def make_reachable(path: str) -> None:
    """Allow all users of the guest to enter the directories above ``path``, which may be in root's home."""
    for directory in Path(os.path.realpath(path)).parents:
        directory.chmod(directory.stat().st_mode | 0o111)
