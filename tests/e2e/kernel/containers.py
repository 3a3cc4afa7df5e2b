"""In the guest: a container made from an allocation, run by a real runtime, and what a process in it can do."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from typing import TYPE_CHECKING, Final

from tests.e2e.common import oci
from tests.e2e.kernel.operations import compare, words
from tests.e2e.kernel.world import DIRECTORY, run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aosp_plugin.testing import ContainerAllocation

RUNTIMES: Final = ("runc", "crun")
HOST_ID: Final = 100_000
"""The host's user that is root in a container with a user namespace."""

_numbers = itertools.count()


async def check(
    runtime: str,
    allocation: ContainerAllocation,
    expected: Mapping[str, str],
    *,
    probe: Path,
    first_host_id: int | None = None,
) -> None:
    """Run a container that tries each operation of ``expected`` in turn, and compare what comes of it."""
    bundle = DIRECTORY / f"container-{next(_numbers)}"
    for name in ("proc", "dev", "sys"):
        (bundle / "rootfs" / name).mkdir(parents=True)
    shutil.copy(probe, bundle / "rootfs/probe")
    spec = oci.spec(
        allocation,
        rootfs=str(bundle / "rootfs"),
        arguments=["/probe", *words(expected)],
        cgroup=f"/{bundle.name}",
        first_host_id=first_host_id,
    )
    if first_host_id is not None:
        os.chown(bundle / "rootfs", first_host_id, first_host_id)
    (bundle / "config.json").write_text(json.dumps(spec))
    done = await run(runtime, "run", "--bundle", str(bundle), bundle.name)
    assert done.code == 0, f"{runtime} ended with {done.code}: {done.err} {done.out}"
    compare(expected, done.out)
    shutil.rmtree(bundle)
