"""Static pods that ask for nodes and tell, from within, what they were given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.kubelet.archive import BUSYBOX

RESOURCE: Final = "aosp.io/binder"
PREFIX: Final = "aosp_binder"
LOGS: Final = Path("/var/log/pods")

_LOOK: Final = """\
box=/bin/busybox
echo '--- env'; $box env
echo '--- dev'; $box ls -l /dev
echo '--- mounts'; $box cat /proc/self/mountinfo
echo '--- opened'
for node in /dev/*binder*; do [ -c $node ] && (: <> $node) && echo $node; done
echo '--- end'
"""

STAY: Final = "trap 'exit 0' TERM; while :; do $box sleep 1000 & wait $!; done"
DONE: Final = "exit 0"


def container(name: str, count: int = 0, *, then: str = STAY, resource: str = RESOURCE, **more: Any) -> dict[str, Any]:
    """Return a container that asks for ``count`` devices, reports, and goes on to what comes ``then``."""
    limits = {"resources": {"limits": {resource: count}}} if count else {}
    command = ["/bin/busybox", "sh", "-c", _LOOK + then]
    return {"name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": command, **limits, **more}


def pod(name: str, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    """Return the manifest of a pod."""
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "initContainers": list(init),
        "containers": list(containers),
    }
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | more}


@dataclass(frozen=True)
class ContainerView:
    """What a container saw of itself."""

    environment: dict[str, str]
    devices: dict[str, str]
    """Name in /dev to its line of ``ls -l``."""
    mounts: dict[str, str]
    """Mount point to its options."""
    bound: dict[str, str]
    """Mount point to the name of the binder node that is bound there."""
    opened: set[str]
    """What in /dev it could open for reading and writing, of all that has binder in its name."""

    @property
    def nodes(self) -> set[str]:
        """Names of the binder nodes in /dev."""
        return self.named(PREFIX)

    def named(self, prefix: str) -> set[str]:
        """What in /dev has a name that begins so."""
        return {name for name in self.devices if name.startswith(prefix)}

    def number(self, name: str) -> tuple[int, int]:
        """Return the major and minor number of a device in /dev."""
        found = re.search(r" (\d+), +(\d+) ", self.devices[name])
        assert found is not None, f"no device: {self.devices[name]}"
        return int(found[1]), int(found[2])

    @property
    def visible(self) -> list[str]:
        """The names that the environment tells."""
        return self.environment.get("BINDER_VISIBLE_DEVICES", "").split(",")


def view(uid: str, container_name: str = "main") -> ContainerView:
    """Return what the last run of a container saw. LookupError while it has not told all."""
    logs = sorted(LOGS.glob(f"*_{uid}/{container_name}/*.log"), key=lambda path: int(path.stem))
    if not logs:
        raise LookupError(f"container {container_name} has no log")
    lines = [line.split(" ", 3)[-1] for line in logs[-1].read_text().splitlines()]
    if "--- end" not in lines:
        raise LookupError(f"container {container_name} has not told all: {lines[-3:]}")
    sections: dict[str, list[str]] = {}
    for line in lines[: lines.index("--- end")]:
        if line.startswith("--- "):
            sections[line[4:]] = []
        else:
            next(reversed(sections.values())).append(line)
    mounts = [line.split() for line in sections["mounts"]]
    return ContainerView(
        environment=dict(line.split("=", 1) for line in sections["env"] if "=" in line),
        devices={re.split(r" -> ", line)[0].split()[-1]: line for line in sections["dev"] if line[0] != "t"},
        mounts={fields[4]: fields[5] for fields in mounts},
        bound={fields[4]: fields[3][1:] for fields in mounts if fields[3].startswith(f"/{PREFIX}")},
        opened={line.removeprefix("/dev/") for line in sections["opened"]},
    )
