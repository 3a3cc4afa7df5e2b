"""Links to binder devices by their numbers, in a directory in place of /dev/char. The devices are never opened."""

import logging
import os
import stat
from pathlib import Path

import pytest

from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import device_links
from aosp_plugin.binder.provision.device_links import DeviceLinks, devices_below
from tests.support import mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="creates devices, which requires root")

MAJOR = 511
CHAR = "dev/char"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a host, with the directory of a binderfs, and links that are not the plugin's."""
    (tmp_path / "run/binderfs").mkdir(parents=True)
    (tmp_path / CHAR).mkdir(parents=True)
    (tmp_path / CHAR / "1:3").symlink_to("../null")
    (tmp_path / CHAR / "195:0").symlink_to("/dev/nvidia0")
    return tmp_path


BINDERFS = "/run/binderfs"


def repair(root: Path, devices: dict[str, str]) -> None:
    DeviceLinks(Host(str(root))).repair(devices, [BINDERFS])


def add(root: Path, name: str, minor: int) -> str:
    """Create a device, and return the name of its link."""
    os.mknod(root / "run/binderfs" / name, stat.S_IFCHR | 0o666, os.makedev(MAJOR, minor))
    return f"{MAJOR}:{minor}"


def devices(root: Path) -> dict[str, str]:
    return devices_below(Host(str(root)), BINDERFS, os.listdir(root / "run/binderfs"))


def targets(root: Path) -> dict[str, str]:
    return {path.name: os.readlink(path) for path in (root / CHAR).iterdir()}


FOREIGN = {"1:3": "../null", "195:0": "/dev/nvidia0"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, "/run/binderfs/one", id="no link"),
        pytest.param("/run/binderfs/one", "/run/binderfs/one", id="right"),
        pytest.param("/run/binderfs/removed", "/run/binderfs/one", id="of a removed device"),
        pytest.param("/run/binderfs/two", "/run/binderfs/one", id="of another device"),
        pytest.param("../same", "../same", id="of udev"),
        pytest.param("/dev/nvidia-uvm", "/run/binderfs/one", id="of a former driver with the major number"),
    ],
)
def test_link_is_right_if_it_leads_to_a_device_of_its_number(root: Path, before: str | None, after: str) -> None:
    name, other = add(root, "one", 1), add(root, "two", 2)
    os.mknod(root / "dev/same", stat.S_IFCHR | 0o666, os.makedev(MAJOR, 1))
    if before is not None:
        (root / CHAR / name).symlink_to(before)
    repair(root, devices(root))
    assert targets(root) == {**FOREIGN, name: after, other: "/run/binderfs/two"}


def test_link_below_the_directory_that_leads_to_no_device_of_its_number_is_removed(root: Path) -> None:
    """The other resource of a binderfs has links, too."""
    add(root, "other", 1)
    for minor, target in ((1, "binderfs/other"), (2, "binderfs/removed"), (3, "binderfs/other"), (9, "other/gone")):
        (root / CHAR / f"{MAJOR}:{minor}").symlink_to(f"/run/{target}")
    repair(root, {})
    assert targets(root) == {**FOREIGN, f"{MAJOR}:1": "/run/binderfs/other", f"{MAJOR}:9": "/run/other/gone"}


def test_single_devices_that_come_or_go_cost_no_look_at_the_others(root: Path) -> None:
    """One phone of a thousand is replaced, or removed as at the end of its claim; the next repair reads all links."""
    removed, kept = add(root, "one", 1), add(root, "two", 2)
    wrong = {f"{MAJOR}:8": "/run/binderfs/gone"}
    (root / CHAR / f"{MAJOR}:8").symlink_to("/run/binderfs/gone")
    links = DeviceLinks(Host(str(root)))
    links.repair(devices(root))
    assert targets(root) == {**FOREIGN, **wrong, removed: "/run/binderfs/one", kept: "/run/binderfs/two"}
    (root / "run/binderfs/one").unlink()
    links.remove([removed, kept])
    assert targets(root) == {**FOREIGN, **wrong, kept: "/run/binderfs/two"}
    links.repair(devices(root), [BINDERFS])
    assert targets(root) == {**FOREIGN, kept: "/run/binderfs/two"}


def test_link_of_a_device_that_came_and_went_is_removed(root: Path) -> None:
    """A claim may be prepared and unprepared between two repairs of all links."""
    name = add(root, "one", 1)
    links = DeviceLinks(Host(str(root)))
    links.repair({name: "/run/binderfs/one"}, [BINDERFS])
    links.repair({add(root, "two", 2): "/run/binderfs/two"})
    (root / "run/binderfs/two").unlink()
    links.repair({name: "/run/binderfs/one"}, [BINDERFS])
    assert targets(root) == {**FOREIGN, name: "/run/binderfs/one"}


def test_link_of_a_number_that_a_device_had_between_two_repairs_is_removed(root: Path) -> None:
    """It was recreated twice, and has its first number again. The recreation, or another process, made the link."""
    name = add(root, "one", 1)
    links = DeviceLinks(Host(str(root)))
    links.repair({name: "/run/binderfs/one"}, [BINDERFS])
    DeviceLinks(Host(str(root))).repair({f"{MAJOR}:6": "/run/binderfs/one"})
    links.repair({name: "/run/binderfs/one"}, [BINDERFS])
    assert targets(root) == {**FOREIGN, name: "/run/binderfs/one"}


def test_link_that_another_process_removes_during_a_repair_is_made_by_the_next_one(root: Path) -> None:
    """As the provisioner does with the links of a phone that is replaced, whose numbers the next phone may get."""
    name = add(root, "one", 1)
    to_remove = [name]

    class SharedHost(Host):
        def listdir(self, directory: str) -> list[str]:
            if to_remove and name in targets(root):
                (root / "dev/char" / to_remove.pop()).unlink()
            return super().listdir(directory)

    links = DeviceLinks(SharedHost(str(root)))
    for expected in (FOREIGN, FOREIGN | {name: "/run/binderfs/one"}):
        links.repair({name: "/run/binderfs/one"}, [BINDERFS])
        assert targets(root) == expected


def test_host_without_udev_gets_the_directory(tmp_path: Path) -> None:
    (tmp_path / "run/binderfs").mkdir(parents=True)
    name = add(tmp_path, "one", 1)
    repair(tmp_path, devices(tmp_path))
    assert targets(tmp_path) == {name: "/run/binderfs/one"}


def test_directory_behind_a_link_is_the_one_that_the_links_lead_to(root: Path) -> None:
    """On a host /var/run is a link to /run, and the links are recognised by their targets."""
    name = add(root, "one", 1)
    (root / "var").symlink_to("/run")
    host = Host(str(root))
    DeviceLinks(host).repair(devices_below(host, "/var/binderfs", ["one"]), ["/var/binderfs"])
    assert targets(root)[name] == "/run/binderfs/one"
    DeviceLinks(host).repair({}, ["/var/binderfs"])
    assert targets(root)[name] == "/run/binderfs/one"
    (root / "run/binderfs/one").unlink()
    DeviceLinks(host).repair({}, ["/var/binderfs"])
    assert targets(root) == FOREIGN


def test_link_that_another_plugin_makes_meanwhile_is_no_failure(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an update lasts, two plugins link the same devices."""
    device_links._log.cache_clear()
    name = add(root, "one", 1)

    def unlink(links: DeviceLinks, name: str) -> None:
        (root / CHAR / name).symlink_to("/run/binderfs/one")

    monkeypatch.setattr(DeviceLinks, "_unlink", unlink)
    repair(root, devices(root))
    assert targets(root) == {**FOREIGN, name: "/run/binderfs/one"}
    assert not caplog.messages


def test_links_that_cannot_be_written_are_logged_once_and_repaired_later(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The host's /dev may be read-only."""
    device_links._log.cache_clear()
    name = add(root, "one", 1)
    (root / CHAR / name).symlink_to("/run/binderfs/removed")
    links, dev = DeviceLinks(Host(str(root))), root / "dev"
    with caplog.at_level(logging.WARNING), mounted(dev, "--bind", dev), mounted(dev, "-o", "bind,ro", dev):
        for _ in range(3):
            links.repair(devices(root), [BINDERFS])
    assert [record.__dict__["error"] for record in caplog.records] == ["Read-only file system"]
    links.repair(devices(root), [BINDERFS])
    assert targets(root) == {**FOREIGN, name: "/run/binderfs/one"}
