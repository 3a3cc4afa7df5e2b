"""In the guest: create a container from an allocation, run it with a real runtime, and try operations in it."""

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict, Unpack

from kubelet_standin import ContainerAllocation
from tests.e2e.common import oci
from tests.e2e.kernel import confinement
from tests.e2e.kernel.operations import compare, words
from tests.e2e.kernel.world import DIRECTORY, part, until

RUNTIMES: Final = ("runc", "crun")
HOST_ID: Final = 100_000
"""The user ID on the host of root in a container with a user namespace."""

HOLDING: Final = {"create /up": "ok", "await /go": "ok"}
"""The operations of a container that stays until :meth:`Running.end`."""

_numbers = itertools.count()


@dataclass
class Running:
    """A running container whose process tries operations."""

    runtime: str
    bundle: Path
    expected: Mapping[str, str]
    process: asyncio.subprocess.Process

    async def is_up(self) -> None:
        """Wait until the process has done the operation ``create /up``, or has ended."""
        up = self.bundle / "rootfs/up"
        await until(lambda: up.exists() or self.process.returncode is not None, f"{self.bundle.name} runs")

    async def end(self) -> None:
        """Let the operation ``await /go`` end, wait for the end of the process, and check the results of all."""
        (self.bundle / "rootfs/go").touch()
        out, err = await self.process.communicate()
        assert self.process.returncode == 0, f"{self.runtime} ended with {self.process.returncode}: {err!r} {out!r}"
        compare(self.expected, out.decode())
        shutil.rmtree(self.bundle)


class Options(TypedDict, total=False):
    """What a container may have besides."""

    first_host_id: int
    capabilities: Sequence[str]
    profile: str
    """AppArmor's."""
    bits: str
    """COMPAT for a 32-bit process."""
    filtered: bool
    """Whether the seccomp profile for phones, and their AppArmor profile, replace the runtime's."""


async def start(
    runtime: str, allocation: ContainerAllocation, expected: Mapping[str, str], **options: Unpack[Options]
) -> Running:
    """Start a container that tries the operations of ``expected`` in order."""
    bundle = DIRECTORY / f"container-{next(_numbers)}"
    for name in ("proc", "dev", "sys"):
        (bundle / "rootfs" / name).mkdir(parents=True)
    shutil.copy(part(f"probe{options.get('bits', '')}"), bundle / "rootfs/probe")
    first_host_id, capabilities = options.get("first_host_id"), tuple(options.get("capabilities", oci.CAPABILITIES))
    spec = oci.spec(
        allocation,
        rootfs=str(bundle / "rootfs"),
        arguments=["/probe", *words(expected)],
        cgroup=f"/{bundle.name}",
        first_host_id=first_host_id,
        capabilities=capabilities,
        confinement=confinement.of_phone()
        if options.get("filtered")
        else confinement.of(capabilities, options.get("profile", confinement.DEFAULT_PROFILE)),
    )
    if first_host_id is not None:
        os.chown(bundle / "rootfs", first_host_id, first_host_id)
    (bundle / "config.json").write_text(json.dumps(spec))
    process = await asyncio.create_subprocess_exec(
        *(runtime, "run", "--bundle", str(bundle), bundle.name),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    return Running(runtime, bundle, expected, process)


async def check(
    runtime: str, allocation: ContainerAllocation, expected: Mapping[str, str], **options: Unpack[Options]
) -> None:
    """Run such a container to its end, and check the results."""
    running = await start(runtime, allocation, expected, **options)
    await running.end()
