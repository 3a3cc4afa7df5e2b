"""Processes in a simulated /proc, and a binder device that they hold open, for the tests of holders."""

import os
from collections.abc import Sequence
from pathlib import Path

from aosp_plugin.binder.devices.holders import Holder, Search, Unread
from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, Kind

SERVICE = "/system.slice/tool.service"


def plain_device(path: Path) -> BinderDevice:
    """Return a binder device that is a plain file, which is created."""
    path.touch()
    status = path.stat()
    return BinderDevice(path.name, str(path), Kind.FILE, FileIdentity(status.st_dev, status.st_rdev, status.st_ino))


class Proc:
    """A simulated /proc with descriptors, cgroups and the files that a search reads."""

    def __init__(self, directory: Path) -> None:
        """Create one without processes. ``self`` is process 999."""
        self.directory = directory
        directory.chmod(0o755)
        (directory / "self").symlink_to("999")

    def process(
        self,
        pid: int,
        *files: str | Path,
        cgroup: str = SERVICE,
        flags: int = os.O_RDWR,
    ) -> Path:
        """Create a process with ``files`` open from descriptor 3 on, and return its directory."""
        process = self.directory / str(pid)
        for part in ("fd", "fdinfo"):
            (process / part).mkdir(parents=True)
        (process / "cmdline").write_bytes(b"tool\0-v\0")
        (process / "comm").write_text("tool\n")
        (process / "cgroup").write_text(f"0::{cgroup}\n", errors="surrogateescape")
        for descriptor, file in enumerate(files, 3):
            self.descriptor(pid, descriptor, file, flags)
        return process

    def descriptor(self, pid: int, descriptor: int, file: str | Path, flags: int = os.O_RDWR) -> None:
        """Add an open descriptor to a process."""
        (self.directory / f"{pid}/fd/{descriptor}").symlink_to(file)
        text = f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t9\nino:\t4\n"
        (self.directory / f"{pid}/fdinfo/{descriptor}").write_text(text)

    def search(self, devices: Sequence[BinderDevice]) -> list[Holder | Unread]:
        """Return what a search finds."""
        reader = Search(devices, str(self.directory))
        return [found for pid in reader.pids() for found in reader.read(pid)]

    def held(self, *devices: BinderDevice) -> list[tuple[str, int]]:
        """Return binder device and process of each holder; all processes are readable."""
        found = self.search(devices)
        assert not [each for each in found if isinstance(each, Unread)]
        return [(each.binder_device, each.pid) for each in found if isinstance(each, Holder)]
