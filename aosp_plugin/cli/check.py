"""``aosp-plugin check``: checks in a container that it has the binder devices that the plugin allocated to it.

The pod of ``helm test`` runs it, with the plugin's configuration: what a container of a resource must have follows from
there, as it does in ``backend.container_edits``.
"""

import contextlib
import errno
import fnmatch
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.devices.scanner import is_restricted
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsError
from aosp_plugin.binder.driver.host import BINDERFS, MOUNTINFO, SYS_DEV, HostError, read_mounts
from aosp_plugin.binder.provision.device_links import DIRECTORY, link_name
from aosp_plugin.cli import echo
from aosp_plugin.config.container_paths import CONTAINER_DIRECTORY
from aosp_plugin.config.convert import shown
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.config.values import OWN_BINDERFS, Api, Isolation, shared_path
from aosp_plugin.framework.backend import DeviceList
from aosp_plugin.framework.errors import ConfigError

_NO_NAMES = (
    "the container got nothing from the plugin: the resource is another plugin's, or the runtime ignores CDI names "
    '(docs/runbook.md, "The container has no binder device at all")'
)
_RESTRICTED = 'chmod 0666 on the host (docs/runbook.md, "EACCES inside the container")'
_CAUSES = {
    errno.ENOENT: 'the plugin did not add it (docs/runbook.md, "The container has no binder device at all")',
    errno.ENXIO: 'a copy of a binderfs device, or a device without a driver (docs/runbook.md, "ENXIO inside the '
    'container")',
    errno.EPERM: 'the device cgroup does not allow it (docs/runbook.md, "EPERM inside the container")',
    errno.EACCES: f"its mode does not allow it: {_RESTRICTED}",
    errno.ENOTTY: 'not a device of the binder driver (docs/runbook.md, "not-binder")',
}


class Finding(NamedTuple):
    """The result of one check."""

    text: str
    problem: str = ""
    """Why it failed and what to do next; empty if it succeeded."""


def check(config: Config, resource_name: str | None, environment: Mapping[str, str]) -> None:
    """Print a line for each check of this container, which has devices of a resource; by default of the only one.

    Raises HostError if a check failed, and ConfigError if the resource is not configured.
    """
    resource = _selected(config.resources, resource_name)
    failed = 0
    for finding in findings(resource, environment):
        failed += bool(finding.problem)
        echo(f"{'FAILED' if finding.problem else 'ok':<8}{finding.text}")
        if finding.problem:
            echo(f"        {finding.problem}")
    if failed:
        raise HostError(
            f"{resource.resource_name}: checks failed in this container: {failed}; see the plugin's log on this node, "
            f"and there: aosp-plugin status"
        )
    echo(f"{resource.resource_name}: this container has its binder devices")


def findings(resource: Resource, environment: Mapping[str, str], root: str = "") -> Iterator[Finding]:
    """Yield the results for a container of ``resource`` with this environment; its files are below ``root``."""
    variable = resource.visible_devices_env if DeviceList.ENVVAR in resource.device_list else ""
    names: list[str] = []
    if variable:
        value = environment.get(variable, "")
        names = [name for name in value.split(",") if name]
        yield Finding(f"{variable}={value}", "" if names else _NO_NAMES)
    paths = _paths(resource, names) if variable else _unnamed(resource, root)
    if not paths and not variable:
        yield Finding(f"{CONTAINER_DIRECTORY}/{resource.device_prefix}*", _NO_NAMES)
    if resource.api is Api.DRA:
        own = _mounted(names, root)
        absent = [path for path in resource.container_paths if path in paths and not os.path.lexists(root + path)]
        for path in absent if own or len(absent) < len(paths) else ():
            yield Finding(f"{path}: does not exist, which is right if the claim has containerPaths without it")
            paths.remove(path)
        paths += [path for path in own if path not in paths]
    for path in paths:
        yield _opened(resource, path, root)


def _mounted(names: Sequence[str], root: str) -> list[str]:
    """Return the paths at which single files of a binderfs are mounted, of those with the names if they are known.

    The container of a claim has its binder devices at paths that the configuration lacks.
    """
    with contextlib.suppress(OSError):
        table = read_mounts(root + MOUNTINFO)
        files = [mount for mount in table if mount.type == BINDERFS and mount.root != "/"]
        return [mount.directory for mount in files if not names or mount.root.lstrip("/") in names]
    return []


def _selected(resources: Sequence[Resource], name: str | None) -> Resource:
    if name is None and len(resources) == 1:
        return resources[0]
    known = [resource.resource_name for resource in resources]
    for resource in resources:
        if resource.resource_name == name:
            return resource
    asked = "several resources are configured" if name is None else f"resource {shown(name)} is not configured"
    raise ConfigError(f"{asked}: --resource must be one of {', '.join(known)}")


def _paths(resource: Resource, names: Sequence[str]) -> list[str]:
    """Return where a container with binder devices of these names, in this order, has them."""
    paths = [path for name, path in zip_longest(names, resource.container_paths[: len(names)]) if name and path]
    if resource.phones is None:
        paths += [f"{CONTAINER_DIRECTORY}/{name}" for name in names]
    elif resource.isolation is not Isolation.STRICT:
        shared = [path for host, path in map(shared_path, resource.shared_mounts) if host == OWN_BINDERFS]
        paths += [f"{directory}/{name}" for directory in shared for name in names]
    return list(dict.fromkeys(paths))


def _unnamed(resource: Resource, root: str) -> list[str]:
    """Return the paths of a container's binder devices without a variable that names them."""
    if resource.phones is not None or resource.sets is not None:
        return list(resource.container_paths)
    pattern = f"{resource.device_prefix}*"
    return [
        f"{CONTAINER_DIRECTORY}/{name}"
        for name in sorted(fnmatch.filter(os.listdir(root + CONTAINER_DIRECTORY), pattern))
    ]


def _opened(resource: Resource, path: str, root: str) -> Finding:
    """Check that a device opens, and that the driver that the resource requires answers."""
    try:
        status = os.stat(root + path)
        if resource.verify is not Verify.FILE and not stat.S_ISCHR(status.st_mode):
            return Finding(path, 'not a character device (docs/runbook.md, "not-a-device")')
        if resource.verify in {Verify.BINDER, Verify.PROBE}:
            version = binderfs.binder_version(root + path)
            remarks = _mode(status) + _link(resource, status, root)
            return Finding(f"{path}: opened, binder protocol {version}{remarks}")
        os.close(os.open(root + path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except BinderfsError as error:
        number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
        return Finding(path, _CAUSES.get(number or 0, str(error)))
    except OSError as error:
        cause = _CAUSES.get(error.errno or 0)
        return Finding(path, f"{error.strerror}: {cause}" if cause else str(error.strerror))
    return Finding(f"{path}: opened{_mode(status)}{_link(resource, status, root)}")


def _mode(status: os.stat_result) -> str:
    """Return a remark about a device that not all users of Android may open."""
    if not is_restricted(status):
        return ""
    return f"; mode {stat.S_IMODE(status.st_mode):04o}: not for all users of Android, {_RESTRICTED}"


def _link(resource: Resource, status: os.stat_result, root: str) -> str:
    """Return a remark about a found device of a binderfs, which some runtimes close again unless the host links it.

    udev links each device in sysfs, and whoever mounts a phone links its devices. Neither the host's links nor the
    runtime's version is visible in a container.
    """
    name = link_name(status.st_rdev)
    in_sysfs = not stat.S_ISCHR(status.st_mode) or os.path.exists(f"{root}{SYS_DEV}/char/{name}")
    if resource.phones is not None or in_sysfs:
        return ""
    return f"; runc 1.1.3 to 1.1.6 may close it again unless the host has {DIRECTORY}/{name}"
