"""The host's files below a root, its mounts, and what /proc and /sys contain about the binder driver."""

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from aosp_plugin.binder.driver import host as host_module
from aosp_plugin.binder.driver.host import Host, binder_majors, parse_mounts

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


@pytest.fixture
def kernel_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the texts of the kernel's files by path, for the test to fill. Other files are empty."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(host_module, "_read", lambda path: texts.get(path, ""))
    return texts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a host with /dev and /run/binderfs."""
    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    (root / "run" / "binderfs").mkdir(parents=True)
    return root


def test_majors_are_those_of_out_of_tree_modules() -> None:
    """A copy of a binderfs device outside its binderfs fails to open with ENXIO."""
    for proc_devices, proc_filesystems, majors in (
        (DEVICES, "", {235, 236, 240}),
        (DEVICES, "nodev\tsysfs\n\text4\nnodev\tbinder\n", {236, 240}),
        ("235 rust_binder\n236 binder\n", "nodev\tbinder\n", set()),
        ("binder\nbinder 235\n-1 binder\n", "", set()),
    ):
        assert binder_majors(proc_devices, proc_filesystems) == majors


def test_driver_owns_its_majors_and_its_misc_minors(kernel_files: dict[str, str]) -> None:
    """Module parameters name its misc devices. It may be a module, built in, or written in Rust."""
    kernel_files["/proc/self/mountinfo"] = MOUNTINFO
    kernel_files["/proc/devices"] = DEVICES
    kernel_files["/proc/misc"] = MISC + "  7 \n"
    kernel_files["/sys/module/binder_linux/parameters/devices"] = "binder,inder\n"
    kernel_files["/sys/module/binder/parameters/devices"] = "hwbinder\n"
    kernel_files["/sys/module/rust_binder/parameters/rust_devices"] = "vndbinder,\n"
    driver = Host().driver()
    assert driver.file_systems == {os.makedev(0, 27), os.makedev(0, 28)}
    numbers = [(235, 77), (236, 0), (240, 0), (10, 58), (10, 59), (10, 60), (10, 7), (10, 232), (9, 59), (300, 0)]
    owned = [(major, minor) for major, minor in numbers if driver.owns(os.makedev(major, minor))]
    assert owned == numbers[:6], "/dev/kvm is 10:232"


def test_numa_node_of_a_device_is_that_of_its_hardware(kernel_files: dict[str, str]) -> None:
    """The kernel has the hardware of a device number below /sys/dev; -1 is none."""
    for kind, mode in (("char", stat.S_IFCHR), ("block", stat.S_IFBLK)):
        status = os.stat_result((mode | 0o600, *[0] * 9), {"st_rdev": os.makedev(226, 129)})
        for text, numa_node in (("1\n", 1), ("0\n", 0), ("-1\n", None), ("x", None), ("", None)):
            kernel_files[f"/sys/dev/{kind}/226:129/device/numa_node"] = text
            assert Host("/host").numa_node(status) == numa_node


def test_lack_of_descriptors_is_an_error() -> None:
    """With an empty driver, binder devices would have another kind until the next scan."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Host().driver()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_links_are_followed_below_the_root(root: Path) -> None:
    (root / "dev" / "binder1").touch()
    (root / "run" / "binderfs" / "a").touch()
    (root / "dev" / "above").symlink_to("../../../../../../../../../run/./binderfs//a")
    (root / "dev" / "chain").symlink_to("above")
    (root / "dev" / "dangling").symlink_to("/run/nowhere/a")
    (root / "dev" / "to-root").symlink_to("/")
    (root / "link").symlink_to("/run/binderfs")
    for path, resolved in (
        ("/absent/further", "/absent/further"),
        ("/dev//./binder1/", "/dev/binder1"),
        ("/link", "/run/binderfs"),
        ("/../../dev/binder1", "/dev/binder1"),
        ("", "/"),
        ("/dev/chain", "/run/binderfs/a"),
        ("/link/../binderfs/a", "/run/binderfs/a"),
        ("/link/b/c/d", "/run/binderfs/b/c/d"),
        ("/dev/dangling", "/run/nowhere/a"),
        ("/dev/to-root/dev/binder1", "/dev/binder1"),
    ):
        assert Host(str(root)).resolve(path) == resolved


def test_the_kernel_s_limit_of_links_applies(root: Path) -> None:
    """40 links in one path resolve, 41 do not."""
    (root / "dev/0").touch()
    for number in range(41):
        (root / f"dev/{number + 1}").symlink_to(str(number))
    host = Host(str(root))
    os.stat(root / "dev/40")
    assert host.resolve("/dev/40") == "/dev/0"
    with pytest.raises(OSError, match="symbolic links"):
        os.stat(root / "dev/41")
    with pytest.raises(OSError, match="symbolic links") as raised:
        host.resolve("/dev/41")
    assert (raised.value.errno, raised.value.filename) == (errno.ELOOP, "/dev/41")


BINDERFS_MOUNTS = r"""
22 28 0:21 / /sys rw,relatime shared:7 - sysfs sysfs rw
90 28 0:45 / /run/aosp-binderfs rw,relatime shared:40 master:2 - binder binder rw,max=5000
91 28 0:300 / /mnt/a\040b\134c rw - binder my\040binder rw,max=1048576,stats=global
92 28 0:45 /aosp_binder1 /var/lib/pod/dev/aosp_binder1 rw - binder binder rw
93 28 259:1 / /mnt/binder rw - ext4 /dev/binder rw,max=9
""".strip()


def test_mount_table_has_the_device_and_source_of_each_binderfs() -> None:
    """Mount points and sources are unescaped."""
    found = [mount for mount in parse_mounts(BINDERFS_MOUNTS) if mount.type == "binder"]
    assert [(mount.directory, mount.st_dev, mount.source) for mount in found] == [
        ("/run/aosp-binderfs", os.makedev(0, 45), "binder"),
        ("/mnt/a b\\c", os.makedev(0, 300), "my binder"),
        ("/var/lib/pod/dev/aosp_binder1", os.makedev(0, 45), "binder"),
    ]
