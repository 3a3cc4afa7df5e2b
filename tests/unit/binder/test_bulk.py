"""Many binder devices on a test host: real files, and a fake binderfs instead of the kernel's."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from aosp_plugin.binder.devices.scanner import Kind
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.host_errors import BinderfsError, DeviceExistsError
from aosp_plugin.binder.provision import bulk
from aosp_plugin.binder.provision.bulk import DevicePool
from tests.fake_binderfs import FakeBinderfs

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="creates device files, which requires root")


class Place:
    """A device directory and a place for the tool's binderfs."""

    def __init__(self, directory: Path, kernel: FakeBinderfs) -> None:
        self.dev, self.run = directory / "dev", directory / "run" / "nodes"
        self.dev.mkdir()
        self.kernel = kernel
        self.pool = DevicePool(str(self.dev), "a", str(self.run))

    def links(self) -> dict[str, str]:
        """Return the target of each link in the device directory."""
        return {name: os.readlink(self.dev / name) for name in os.listdir(self.dev)}

    def devices(self) -> set[str]:
        """Return the binder devices of the tool's binderfs."""
        return set(binderfs.device_names(str(self.run)))


@pytest.fixture
def place(tmp_path: Path, fake_binderfs: FakeBinderfs, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(bulk, "check_directory", lambda _directory: None)
    return Place(tmp_path, fake_binderfs)


def test_create_mounts_a_binderfs_and_links_to_its_devices(place: Place) -> None:
    """A repetition creates what is missing and restores modes, which counts as well."""
    summary = place.pool.create(2, first=9, max_devices=50)
    assert summary == f"{place.dev}: 2 devices created, 0 already present (a9 to a10, binderfs at {place.run})\n"
    assert "3 devices created, 2 already present (a9 to a13" in place.pool.create(5, first=9)
    (place.dev / "a9").unlink()
    (place.run / "a10").unlink()
    (place.run / "a11").chmod(0)
    assert "3 devices created, 2 already present" in place.pool.create(5, first=9)
    assert place.links() == {f"a{number}": f"{place.run}/a{number}" for number in range(9, 14)}
    assert {stat.S_IMODE((place.dev / name).stat().st_mode) for name in place.links()} == {0o666}
    assert place.kernel.calls == [("mount", 50)]


@pytest.mark.parametrize(
    ("user", "kind", "text"),
    [pytest.param(0, Kind.STAND_IN, "null devices", marks=needs_root), (1000, Kind.FILE, "empty files")],
)
def test_stand_ins_are_null_devices_or_empty_files(
    place: Place, monkeypatch: pytest.MonkeyPatch, user: int, kind: Kind, text: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    summary = place.pool.create(1, stand_ins=True)
    assert summary == f"{place.dev}: 1 device created, 0 already present (a0, {text}, not binder)\n"
    assert "1 device created, 1 already present" in place.pool.create(2, stand_ins=True)
    assert {path.is_char_device() for path in place.dev.iterdir()} == {kind is Kind.STAND_IN}
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.dev.iterdir()} == {0o666}
    assert [device.kind for device in place.pool.list()] == [kind] * 2
    assert place.pool.delete() == f"{place.dev}: 2 devices deleted\n"
    assert os.listdir(place.dev) == []
    assert place.kernel.calls == []


def test_create_names_what_is_in_the_way_and_creates_nothing(place: Place) -> None:
    obstacles: list[tuple[Callable[[Path], object], bool]] = [
        (lambda path: path.symlink_to("null"), False),
        (lambda path: path.write_text("mine"), True),
        (os.mkfifo, True),
        (os.mknod, False),
    ]
    for obstacle, stand_ins in obstacles:
        obstacle(place.dev / "a1")
        expected = f"^{place.dev}/a1 is in the way: remove it, or choose another --prefix or --start$"
        with pytest.raises(DeviceExistsError, match=expected):
            place.pool.create(3, stand_ins=stand_ins)
        assert os.listdir(place.dev) == ["a1"]
        (place.dev / "a1").unlink()
    assert place.kernel.calls == []


def test_list_is_in_natural_order_and_names_targets(place: Place) -> None:
    place.pool.create(2, first=9)
    (place.run / "a9").unlink()
    (place.dev / "a11").symlink_to("elsewhere")
    (place.dev / "a012").touch()
    (place.dev / "other").touch()
    assert place.pool.list() == [
        ("a9", Kind.ABSENT, f"{place.dev}/a9", f"{place.run}/a9"),
        ("a10", Kind.BINDERFS, f"{place.dev}/a10", f"{place.run}/a10"),
    ]


def test_delete_leaves_what_is_not_the_tool_s(place: Place) -> None:
    place.pool.create(2)
    (place.dev / "a5").write_text("mine")
    (place.dev / "a6").symlink_to(f"{place.run}/a0")
    (place.dev / "a07").touch()
    (place.dev / "ab").touch()
    place.kernel.add_device(str(place.run), "theirs")
    assert place.pool.delete() == (
        f"{place.dev}: 2 devices deleted\n{place.run} stays mounted: it has other devices (theirs)\n"
    )
    assert set(os.listdir(place.dev)) == {"a5", "a6", "a07", "ab"}
    assert place.devices() == {"theirs"}


@pytest.mark.parametrize("source", ["binder", "aosp-nodes:/elsewhere"])
def test_another_binderfs_in_the_place_of_the_tool_s_is_left_alone(place: Place, source: str) -> None:
    """It may be the daemon's, or that of devices in another directory: the tool neither adds nor removes devices."""
    place.run.mkdir(parents=True)
    place.kernel.mount(str(place.run), source=source)
    place.kernel.add_device(str(place.run), "a0")
    (place.dev / "a0").symlink_to(place.run / "a0")
    expected = f"^{place.run} is a binderfs that was not created for devices in {place.dev}: unmount it$"
    with pytest.raises(BinderfsError, match=expected):
        place.pool.create(2, max_devices=9)
    with pytest.raises(BinderfsError, match=expected):
        place.pool.delete()
    assert place.links().keys() == place.devices() == {"a0"}
    assert place.kernel.calls == [("mount", None)]


@pytest.mark.parametrize("kernel_devices", [(), ("binder", "hwbinder", "vndbinder")])
def test_delete_unmounts_a_binderfs_without_other_devices(
    place: Place, monkeypatch: pytest.MonkeyPatch, kernel_devices: tuple[str, ...]
) -> None:
    """The driver's parameter ``devices=`` names binder devices that the kernel creates at each mount."""
    monkeypatch.setattr(bulk, "binder_parameters", lambda: ",".join(kernel_devices) + "\n\n")
    place.kernel.kernel_devices = kernel_devices
    (place.dev.parent / "link").symlink_to("dev")
    monkeypatch.chdir(place.dev.parent)
    DevicePool("link", "a", "./run/nodes").create(1)
    assert place.pool.delete() == f"{place.dev}: 1 device deleted\n"
    assert (os.listdir(place.dev), place.kernel.mounts) == ([], {})
    assert place.run.is_dir(), "a container may have the directory as a volume"
    assert place.pool.delete() == f"{place.dev}: 0 devices deleted\n"


def test_create_refuses_a_prefix_that_gives_invalid_names(place: Place) -> None:
    for prefix in ("a/b", "x" * 62):
        with pytest.raises(ValueError, match=f"^--prefix: '{prefix}' gives names like '{prefix}10': "):
            DevicePool(str(place.dev), prefix, str(place.run)).create(11)
