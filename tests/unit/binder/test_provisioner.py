"""Provisioning by the daemon: real files, and a fake binderfs instead of the kernel's."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import BinderfsError, BinderMissingError, DevicesExhaustedError, HostError
from aosp_plugin.binder.provision import device_provisioner
from aosp_plugin.binder.provision.device_provisioner import DeviceProvisioner
from tests.fake_binderfs import FakeBinderfs, binderfs_mount
from tests.support import PATIENCE

MAX = 100
MODES = dict.fromkeys(("a0", "a1", "a2"), 0o666)


class Place:
    """A host with a directory for a binderfs, and the calls that provision binder devices in it."""

    def __init__(self, tree: Path, kernel: FakeBinderfs) -> None:
        tree.mkdir()
        self.tree = tree
        self.directory = tree / "run" / "devices"
        self.spec_directory = "/run/devices"
        self.host = Host(str(tree))
        self.kernel = kernel

    def provisioner(
        self, count: int = 3, first: int = 0, max_devices: int | None = MAX, directory: str = ""
    ) -> DeviceProvisioner:
        """Return a provisioner of a0, a1, ..."""
        names = [f"a{number}" for number in range(first, first + count)]
        return DeviceProvisioner(self.host, directory or self.spec_directory, names, max_devices)

    def provision(self, count: int = 3, **more: Any) -> int:
        """Provision once."""
        return self.provisioner(count, **more).provision()

    def modes(self) -> dict[str, int]:
        """Return the mode of each binder device."""
        names = binderfs.device_names(str(self.directory))
        return {name: stat.S_IMODE((self.directory / name).stat().st_mode) for name in names}

    def times(self) -> dict[str, int]:
        """Return when each file, or the directory itself, was last changed."""
        paths = [self.directory, *self.directory.iterdir()]
        return {str(path): path.stat().st_ctime_ns for path in paths}


@pytest.fixture
def place(tmp_path: Path, fake_binderfs: FakeBinderfs) -> Place:
    return Place(tmp_path / "host", fake_binderfs)


def test_provision_mounts_a_binderfs_and_creates_every_device(place: Place) -> None:
    """A repetition changes nothing: a write would be a file event, and with it the next scan."""
    assert place.provision(3) == 3
    assert place.modes() == MODES
    before = place.times()
    assert place.provision(3) == 0
    assert place.times() == before
    assert place.kernel.calls == [("mount", MAX)]


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.chmod(path, 0o600)], ids=["removed", "mode"])
def test_provision_restores_one_device_and_keeps_the_others(place: Place, damage: Callable[[Path], None]) -> None:
    place.provision(3)
    before = [(place.directory / name).stat().st_ino for name in ("a0", "a2")]
    damage(place.directory / "a1")
    assert place.provision(3) == 1
    assert place.modes() == MODES
    assert [(place.directory / name).stat().st_ino for name in ("a0", "a2")] == before


def test_provision_accepts_a_mounted_binderfs_and_its_devices(place: Place) -> None:
    """An administrator, or a predecessor, may have mounted it."""
    place.directory.mkdir(parents=True)
    place.kernel.mount(str(place.directory), 5)
    place.kernel.add_device(str(place.directory), "a1")
    place.kernel.add_device(str(place.directory), "other")
    assert place.provision(3, max_devices=None) == 3
    assert place.modes() == {**MODES, "other": 0o600}
    assert place.kernel.calls == [("mount", 5)]


@pytest.mark.parametrize(
    ("mounted", "limit", "calls"),
    [
        (MAX, MAX + 1, [("remount", MAX + 1)]),
        (MAX, MAX, []),
        (MAX, MAX - 1, []),
        (MAX, None, []),
        (None, MAX + 1, []),  # the kernel does not show the present one
    ],
)
def test_provision_raises_max_and_never_lowers_it(
    place: Place, mounted: int | None, limit: int | None, calls: list[tuple[str, int | None]]
) -> None:
    place.provision(2)
    path = str(place.directory)
    place.kernel.mounts[path] = binderfs_mount(path, mounted)
    assert place.provision(3, max_devices=limit) == 1
    assert place.kernel.calls == [("mount", MAX), *calls]


def test_mount_that_hangs_blocks_no_other_directory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resource with the same directory fails after a deadline."""
    monkeypatch.setattr(device_provisioner, "LOCK_TIMEOUT", 0.1)
    hanging, release = threading.Event(), threading.Event()

    def hang(step: str) -> None:
        if step == "mount" and threading.current_thread() is first:
            hanging.set()
            release.wait(PATIENCE)

    place.kernel.hook = hang
    first = threading.Thread(target=place.provision)
    first.start()
    assert hanging.wait(PATIENCE)
    try:
        assert place.provision(3, directory=f"{place.spec_directory}2") == 3
        with pytest.raises(HostError, match="another resource"):
            place.provision(3)
    finally:
        release.set()
        first.join(PATIENCE)
    assert place.provision(3) == 0


def test_provision_never_mounts_over_files(place: Place) -> None:
    place.directory.mkdir(parents=True)
    (place.directory / "precious").touch()
    with pytest.raises(BinderfsError, match=f"{place.directory} is neither empty nor a binderfs"):
        place.provision(3)
    (place.directory / "precious").unlink()
    place.directory.rmdir()
    place.directory.touch()
    with pytest.raises(HostError, match=f"cannot provision .* in {place.spec_directory}: .*Not a directory"):
        place.provision(3)
    assert place.kernel.calls == []


def test_provision_keeps_what_it_created_before_a_failure(place: Place) -> None:
    """A later provisioning of fewer devices removes none: containers may use them."""
    with pytest.raises(DevicesExhaustedError, match="max=2"):
        place.provision(3, max_devices=2)
    assert place.modes().keys() == {"a0", "a1"}
    assert place.provision(3, max_devices=4) == 1
    assert place.provision(1) == 0
    assert place.modes() == MODES


def test_a_failure_leaves_an_empty_directory_and_is_over_with_its_cause(place: Place) -> None:
    def refuse(_step: str) -> None:
        raise binderfs.refusal(binderfs.Step.MOUNT, errno.ENODEV, str(place.directory))

    refused = place.provisioner(3)
    place.kernel.hook = refuse
    for _ in range(2):
        with pytest.raises(BinderMissingError):
            refused.provision()
        assert os.listdir(place.directory) == []
    place.kernel.hook = lambda _step: None
    assert refused.provision() == 3
