"""The host's files seen under a root, and what /proc and /sys say of the binder driver."""

from __future__ import annotations

import errno
import os
import resource
import stat
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.binder.driver import host as host_module
from aosp_plugin.binder.driver.host import Driver, Host, binder_majors, binder_misc_minors, binder_parameters

if TYPE_CHECKING:
    from pathlib import Path

DEVICES = """\
Character devices:
  1 mem
 10 misc
235 binder
236 aosp_binder_linux
240 bindery
300 nvme

Block devices:
  7 loop
237 binder-blocks
"""

MISC = """\
232 kvm
 58 hwbinder
 59 binder
 60 vndbinder
235 autofs
"""

MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
31 22 0:27 / /dev/binderfs rw,nosuid - binder binder rw,max=1048576
32 22 0:28 / /run/other rw - binder binder rw
"""


class Kernel:
    """The kernel's files, as texts: what a test does not give can't be read."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def read(self, path: str) -> str:
        """Return a text as ``host._read`` does."""
        return self.texts.get(path, "")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(host_module, "_read", made.read)
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a host's tree, with a /dev and a binderfs elsewhere."""
    made = tmp_path / "host"
    (made / "dev").mkdir(parents=True)
    (made / "run" / "binderfs").mkdir(parents=True)
    return made


def test_majors_are_those_whose_character_driver_has_binder_in_its_name() -> None:
    """Out-of-tree modules have names of their own around the word; block devices don't count."""
    assert binder_majors(DEVICES, "") == {235, 236, 240}


def test_no_proc_devices_means_no_major() -> None:
    """A text that could not be read, or has lines of another shape, names no driver."""
    assert binder_majors("", "") == frozenset()
    assert binder_majors("binder\nbinder 235\n-1 binder\n", "") == frozenset()


def test_the_major_that_binderfs_reserves_opens_nothing_elsewhere() -> None:
    """A copy of a binderfs node, made with mknod outside it, is no binder node: it opens with ENXIO."""
    filesystems = "nodev\tsysfs\n\text4\nnodev\tbinder\n"
    assert binder_majors("Character devices:\n235 binder\n236 aosp_binder\n", filesystems) == {236}
    assert binder_majors("Character devices:\n235 binder\n", "nodev\tbinder2\n") == {235}


def test_misc_minors_are_those_named_by_the_driver_s_parameter() -> None:
    """The major 10 is shared by all misc drivers: only names that devices= gave are binder's, and in full."""
    assert binder_misc_minors(MISC, "binder,hwbinder\n") == {58, 59}
    assert binder_misc_minors(MISC, "") == frozenset()
    assert binder_misc_minors(MISC, "inder,kv") == frozenset()


def test_several_parameters_add_up() -> None:
    """The parameters of several modules stand on lines of their own; empty ones name nothing."""
    assert binder_misc_minors(MISC, "binder\n\n\n,vndbinder,\n") == {59, 60}
    assert binder_misc_minors("7 \n", "\n,\n") == frozenset()


def test_the_parameters_of_every_driver_are_read(kernel: Kernel) -> None:
    """The driver as a module, built in, and in Rust keep their lists of devices in different places."""
    kernel.texts["/sys/module/binder_linux/parameters/devices"] = "a,b\n"
    kernel.texts["/sys/module/binder/parameters/devices"] = "c\n"
    kernel.texts["/sys/module/rust_binder/parameters/rust_devices"] = "d\n"
    assert [name for name in binder_parameters().replace("\n", ",").split(",") if name] == ["a", "b", "c", "d"]


def test_the_driver_is_what_mounts_devices_and_misc_say(kernel: Kernel) -> None:
    """One look reads the mounted binderfs, the majors and the misc minors."""
    kernel.texts = {
        "/proc/self/mountinfo": MOUNTINFO,
        "/proc/devices": DEVICES,
        "/proc/misc": MISC,
        "/sys/module/binder/parameters/devices": "binder\n",
    }
    assert Host().driver() == Driver(
        frozenset({os.makedev(0, 27), os.makedev(0, 28)}), frozenset({235, 236, 240}), frozenset({59})
    )


def test_a_kernel_that_says_nothing_has_no_binder(kernel: Kernel) -> None:
    """Files that can't be read count as empty."""
    assert Host().driver() == Driver()
    assert kernel.texts == {}


def test_this_machine_s_own_files_can_be_read() -> None:
    """The real files of /proc give a driver, whatever it holds."""
    seen = Host().driver()
    assert all(isinstance(number, int) for number in (*seen.file_systems, *seen.majors, *seen.misc_minors))


def test_reading_takes_any_bytes_and_no_file_for_nothing(tmp_path: Path) -> None:
    """A mount point that is not UTF-8 does not keep the rest from being read."""
    (tmp_path / "text").write_bytes(b"a\xff\n")
    assert host_module._read(str(tmp_path / "text")) == "a\udcff\n"
    assert host_module._read(str(tmp_path / "none")) == ""
    assert host_module._read(str(tmp_path)) == ""


def test_what_can_not_be_read_for_want_of_descriptors_is_not_taken_for_empty() -> None:
    """Binder's nodes would be other devices until the next look, and reach containers as copies that don't open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Host().driver()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("major", "minor", "owned"),
    [(235, 0, True), (235, 77, True), (10, 59, True), (10, 232, False), (9, 59, False), (1, 3, False)],
)
def test_a_number_is_binder_s_by_its_major_or_as_a_misc_minor(major: int, minor: int, owned: bool) -> None:  # noqa: FBT001
    """KVM's node, 10:232, is not binder's though it shares the misc major."""
    driver = Driver(majors=frozenset({235}), misc_minors=frozenset({59}))
    assert driver.owns(os.makedev(major, minor)) is owned


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/dev/binder1", "/dev/binder1"),
        ("/dev/absent", "/dev/absent"),
        ("/absent/further", "/absent/further"),
        ("/dev//./binder1/", "/dev/binder1"),
        ("/dev/../dev/binder1", "/dev/binder1"),
        ("/../../dev/binder1", "/dev/binder1"),
        ("/", "/"),
        ("", "/"),
        ("dev/binder1", "/dev/binder1"),
        ("/dev/absolute", "/run/binderfs/node"),
        ("/dev/relative", "/run/binderfs/node"),
        ("/dev/above", "/run/binderfs/node"),
        ("/dev/chain", "/run/binderfs/node"),
        ("/link/node", "/run/binderfs/node"),
        ("/link/../binderfs/node", "/run/binderfs/node"),
        ("/dev/dangling", "/run/nowhere/node"),
        ("/dev/to-root", "/"),
        ("/dev/to-root/dev/binder1", "/dev/binder1"),
    ],
)
def test_links_are_followed_under_the_root(root: Path, path: str, resolved: str) -> None:
    """Absolute links, links in the middle of a path and '..' never lead out of the host's tree."""
    (root / "dev" / "binder1").touch()
    (root / "run" / "binderfs" / "node").touch()
    (root / "dev" / "absolute").symlink_to("/run/binderfs/node")
    (root / "dev" / "relative").symlink_to("../run/binderfs/node")
    (root / "dev" / "above").symlink_to("../../../../../../../../../run/./binderfs//node")
    (root / "dev" / "chain").symlink_to("absolute")
    (root / "dev" / "dangling").symlink_to("/run/nowhere/node")
    (root / "dev" / "to-root").symlink_to("/")
    (root / "link").symlink_to("/run/binderfs")
    assert Host(str(root)).resolve(path) == resolved


def test_parts_behind_a_link_are_kept_in_order(root: Path) -> None:
    """What follows a link in a path is looked up below the link's target, however long both are."""
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "a" / "b" / "c" / "d").touch()
    (root / "dev" / "x").symlink_to("../a/b")
    assert Host(str(root)).resolve("/dev/x/c/d") == "/a/b/c/d"


def test_a_loop_of_links_ends_in_eloop(root: Path) -> None:
    """Links that lead to themselves are an error with the path that was asked for."""
    (root / "dev" / "one").symlink_to("two")
    (root / "dev" / "two").symlink_to("/dev/one")
    with pytest.raises(OSError, match="symbolic links") as raised:
        Host(str(root)).resolve("/dev/one")
    assert (raised.value.errno, raised.value.filename) == (errno.ELOOP, "/dev/one")


@pytest.mark.parametrize("links", [40, 41])
def test_as_many_links_are_followed_as_the_kernel_follows(root: Path, links: int) -> None:
    """Forty links in a row are followed and the forty-first is not, here and in the kernel."""
    (root / "dev" / "0").touch()
    for number in range(links):
        (root / "dev" / str(number + 1)).symlink_to(str(number))
    host = Host(str(root))
    if links == 40:
        os.stat(root / "dev" / "40")
        assert host.resolve("/dev/40") == "/dev/0"
        return
    with pytest.raises(OSError, match="symbolic links"):
        os.stat(root / "dev" / "41")
    with pytest.raises(OSError, match="symbolic links"):
        host.resolve("/dev/41")


def test_names_lists_a_directory_through_its_links(root: Path) -> None:
    """The directory may itself be a link within the host's tree."""
    (root / "run" / "binderfs" / "node").touch()
    (root / "link").symlink_to("/run/binderfs")
    assert Host(str(root)).listdir("/link") == ["node"]
    with pytest.raises(FileNotFoundError):
        Host(str(root)).listdir("/absent")


def test_lstat_and_readlink_look_at_the_link_itself(root: Path) -> None:
    """The last part is not followed; what is no link has nothing to read."""
    (root / "dev" / "link").symlink_to("/run/x")
    host = Host(str(root))
    assert stat.S_ISLNK(host.lstat("/dev/link").st_mode)
    assert host.readlink("/dev/link") == "/run/x"
    with pytest.raises(OSError, match="Invalid argument"):
        host.readlink("/dev")


def test_a_path_exists_where_its_links_lead_to_a_file(root: Path) -> None:
    """A dangling link and a loop do not exist; a directory and a link to it do."""
    (root / "dev" / "dangling").symlink_to("/run/x")
    (root / "dev" / "loop").symlink_to("loop")
    (root / "dev" / "good").symlink_to("/run/binderfs")
    host = Host(str(root))
    assert host.exists("/dev/good")
    assert host.exists("/dev")
    assert not host.exists("/dev/dangling")
    assert not host.exists("/dev/loop")
    assert not host.exists("/dev/none")


@pytest.mark.parametrize(
    ("root", "path", "seen"),
    [
        ("/", "/dev", "/dev"),
        ("/", "/", "/"),
        ("/host", "/dev", "/host/dev"),
        ("/host/", "/dev", "/host/dev"),
        ("/host", "/", "/host/"),
    ],
)
def test_a_host_s_path_is_seen_below_the_root(root: str, path: str, seen: str) -> None:
    """What this process opens is the host's path behind the root."""
    assert Host(root).process_path(path) == seen
    assert Host().process_path("/dev") == "/dev"
