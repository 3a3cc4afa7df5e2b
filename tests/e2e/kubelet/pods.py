"""Static pods that request devices and report their view from inside."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.common.images import BUSYBOX

RESOURCE: Final = "aosp.io/binder"
PREFIX: Final = "aosp_binder"
LOGS: Final = Path("/var/log/pods")

_REPORT: Final = """\
box=/bin/busybox
echo '--- env'; $box env
echo '--- dev'; $box ls -l /dev
echo '--- mounts'; $box cat /proc/self/mountinfo
echo '--- opened'
for device in /dev/*binder*; do [ -c $device ] && (: <> $device) && echo $device; done
echo '--- end'
"""

STAY: Final = "trap 'exit 0' TERM; while :; do $box sleep 1000 & wait $!; done"
DONE: Final = "exit 0"


def container(name: str, count: int = 0, *, then: str = STAY, resource: str = RESOURCE, **more: Any) -> dict[str, Any]:
    """Return a container that requests ``count`` devices, prints its report, and runs the script ``then``."""
    limits = {"resources": {"limits": {resource: count}}} if count else {}
    command = ["/bin/busybox", "sh", "-c", _REPORT + then]
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
    """A container's report about itself."""

    environment: dict[str, str]
    devices: dict[str, str]
    """Name in /dev to its line of ``ls -l``."""
    mounts: dict[str, str]
    """Mount point to its options."""
    bound: dict[str, str]
    """Mount point to the name of the binder device that is bound there."""
    file_systems: dict[str, str]
    """Mount point to the device number of its file system, as in ``0:68``."""
    opened: set[str]
    """The files in /dev with binder in their names that the container could open for reading and writing."""

    @property
    def binder_devices(self) -> set[str]:
        """The names of the binder devices in /dev."""
        return self.named(PREFIX)

    def named(self, prefix: str) -> set[str]:
        """Return the names of the files in /dev with a prefix."""
        return {name for name in self.devices if name.startswith(prefix)}

    def number(self, name: str) -> tuple[int, int]:
        """Return the major and minor number of a device in /dev."""
        found = re.search(r" (\d+), +(\d+) ", self.devices[name])
        assert found is not None, f"no device: {self.devices[name]}"
        return int(found[1]), int(found[2])

    @property
    def visible(self) -> list[str]:
        """The names in BINDER_VISIBLE_DEVICES."""
        return self.environment.get("BINDER_VISIBLE_DEVICES", "").split(",")


def view(uid: str, container_name: str = "main") -> ContainerView:
    """Return the report of a container's last run. Raises LookupError while the report is incomplete."""
    logs = sorted(LOGS.glob(f"*_{uid}/{container_name}/*.log"), key=lambda path: int(path.stem))
    if not logs:
        raise LookupError(f"container {container_name} has no log")
    entries = [line.split(" ", 3) for line in logs[-1].read_text().splitlines()]
    # With CRI-O, stderr has warnings of the OCI runtime, too.
    return parse([text for _, stream, _, text in entries if stream == "stdout"])


def parse(lines: list[str]) -> ContainerView:
    """Return a container's report from the lines of its log. Raises LookupError while the report is incomplete."""
    if "--- end" not in lines:
        raise LookupError(f"the container has not finished its report: {lines[-3:]}")
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
        file_systems={fields[4]: fields[2] for fields in mounts},
        bound={fields[4]: fields[3][1:] for fields in mounts if fields[3].startswith(f"/{PREFIX}")},
        opened={line.removeprefix("/dev/") for line in sections["opened"]},
    )
