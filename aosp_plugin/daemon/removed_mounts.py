"""Ends the process when a directory that it has as a mount was removed on the host.

A running container keeps the removed directory: nobody reads the files that the process writes there, and the process
does not see the files in the directory's successor, which only a new container has. ``sockets`` checks the kubelet's
directories in the same way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from functools import partial

from aosp_plugin.backend.catalog import MOUNTS_UNREADABLE
from aosp_plugin.config.keys import Config
from aosp_plugin.config.values import Api
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.dra.slices import driver_name
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.sockets import is_removed_mount
from aosp_plugin.framework.timing import DEFAULT
from aosp_plugin.framework.worker import Worker


async def end_with_removed_mounts(
    config: Config, conditions: Conditions, worker: Worker, interval: float = DEFAULT.recheck
) -> None:
    """Look every ``interval`` seconds until cancelled. Raises PluginError if a mount was removed."""
    paths = _paths(config)
    while True:
        try:
            removed = await worker.run(partial(removed_mounts, paths), label="look at mounts")
        except OSError as error:
            conditions.set(MOUNTS_UNREADABLE, str(error))
        else:
            conditions.set(MOUNTS_UNREADABLE, "")
            if removed:
                raise PluginError(f"{', '.join(removed)} was removed on the host: this container has it as a mount")
        await asyncio.sleep(interval)


def _paths(config: Config) -> set[str]:
    """Return the directories of the host in which the process writes, as paths of this process."""
    directories = {config.cdi_dir, *(each.scan_directory for each in config.resources if each.phones)}
    drivers = {driver_name(each.resource_name) for each in config.resources if each.api is Api.DRA}
    return {
        *(os.path.normpath(f"{config.host_root}/{directory}") for directory in directories),
        *map(config.driver_directory, drivers),
    }


def removed_mounts(paths: Iterable[str]) -> list[str]:
    """Return the mounts with these paths, or above them, whose directories have been removed. Raises OSError."""
    nearest = set()
    for path in paths:
        while not os.path.exists(path):
            path = os.path.dirname(path)  # noqa: PLW2901 - a removed directory has none below
        nearest.add(path)
    return sorted(filter(is_removed_mount, nearest))
