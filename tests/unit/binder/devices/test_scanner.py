"""Scans of a host's files: names, links, kinds, and the directories to watch."""

import errno
import itertools
import os
import posixpath
import stat
from typing import NamedTuple

import pytest

from aosp_plugin.binder.devices import scanner
from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, Kind, Scan, kind_of
from aosp_plugin.binder.devices.sets import Layout, Named, Numbered, Single, natural_sort
from aosp_plugin.binder.devices.store import track
from aosp_plugin.binder.driver.host import Driver, Host

FLAT = Single("aosp_binder")
NESTED = Named(["binder", "hwbinder"])
DEV, BINDERFS, OTHER_BINDERFS = 5, 70, 71
BINDER, CONTROL = os.makedev(235, 1), os.makedev(235, 0)
KVM, MISC_BINDER, NULL = os.makedev(10, 232), os.makedev(10, 59), os.makedev(1, 3)
MOUNTED = 1_795_000_000_123_456_789
DRIVER = Driver(frozenset({BINDERFS, OTHER_BINDERFS}), frozenset({235}), frozenset({59}))


class File(NamedTuple):
    """A file of a ``Tree``."""

    mode: int
    device: int
    number: int = 0
    target: str = ""


class Tree(Host):
    """A host whose files are in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, File] = {}
        self.calls: list[str] = []
        """Paths of the calls of lstat."""
        self.directory("/", DEV)
        self.directory("/dev", DEV)

    def directory(self, path: str, device: int) -> None:
        """Create a directory."""
        self.files[path] = File(stat.S_IFDIR, device)

    def char(self, path: str, device: int, number: int) -> None:
        """Create a character device."""
        self.files[path] = File(stat.S_IFCHR, device, number)

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link."""
        self.files[path] = File(stat.S_IFLNK, DEV, target=target)

    def listdir(self, directory: str) -> list[str]:
        """List a directory, last names first."""
        names = [posixpath.basename(path) for path in self.files if posixpath.dirname(path) == directory != path]
        return sorted(names, reverse=True)

    def lstat(self, path: str) -> os.stat_result:
        """Return the status of a file. Its inode is derived from its path."""
        self.calls.append(path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        file = self.files[path]
        inode = sorted(self.files).index(path) + 100
        values = (file.mode | 0o666, inode, file.device, 1, 0, 0, 0, 0, 0, 0)
        return os.stat_result(values, {"st_rdev": file.number, "st_mtime_ns": MOUNTED})

    def resolve(self, path: str, links: set[str] | None = None) -> str:
        """Follow links of whole paths only."""
        for _ in range(40):
            if path not in self.files or not self.files[path].target:
                return path
            if links is not None:
                links.add(path)
            path = self.files[path].target
        raise OSError(errno.ELOOP, "Too many levels of symbolic links", path)


def scan(tree: Tree, layout: Layout = FLAT, directory: str = "/dev") -> Scan:
    return scanner.scan_devices(tree, DRIVER, directory, layout)


def test_name_without_a_number_is_in_no_set_with_a_size() -> None:
    """As /dev/binder with the prefix binder: Android's own names do not form a numbered set."""
    tree = Tree()
    for name in ("binder", "binder0", "hwbinder"):
        tree.char(f"/dev/{name}", DEV, MISC_BINDER)
    result = scan(tree, Numbered("binder", 1))
    assert result.skipped == {"binder": "its name has no number"}
    assert "binder" not in result.devices
    assert scan(tree, Single("binder")).skipped == {}


def scan_phones(tree: Tree, layout: Named = NESTED) -> Scan:
    return scan(tree, layout, "/dev/phones")


def names(result: Scan) -> list[str]:
    """Return the names in natural order."""
    return natural_sort([*result.devices])


def devices(result: Scan) -> list[BinderDevice]:
    return [result.devices[name] for name in names(result)]


@pytest.fixture
def tree() -> Tree:
    """Return a host with an empty /dev and two mounted binderfs."""
    tree = Tree()
    tree.directory("/run/binderfs", BINDERFS)
    tree.directory("/dev/binderfs", OTHER_BINDERFS)
    tree.char("/run/binderfs/binder-control", BINDERFS, CONTROL)
    tree.char("/dev/binderfs/binder-control", OTHER_BINDERFS, CONTROL)
    return tree


@pytest.fixture
def phones(tree: Tree) -> Tree:
    """Return a host with two phones in /dev/phones, each with a binderfs of its own."""
    tree.directory("/dev/phones", DEV)
    for phone, device in (("phone10", BINDERFS), ("phone9", OTHER_BINDERFS)):
        tree.directory(f"/dev/phones/{phone}", device)
        for number, name in enumerate(("binder-control", "binder", "hwbinder", "features")):
            tree.char(f"/dev/phones/{phone}/{name}", device, os.makedev(235, number))
    return tree


def test_devices_are_those_with_the_prefix(tree: Tree) -> None:
    """Neither directories nor the control file are devices. Names that are not valid IDs are skipped with a reason."""
    for name in ("binder10", "binder2", "binder", "binder-control", "binder-control2", "null", "my_binder", "binder 3"):
        tree.char(f"/dev/{name}", DEV, NULL)
    tree.directory("/dev/binder3", OTHER_BINDERFS)
    tree.link("/dev/binder4", "/run/binderfs")
    result = scan(tree, Single("binder"))
    assert names(result) == ["binder", "binder2", "binder10", "binder-control2"]
    problem = "the name contains a space, a control character or bytes that are not UTF-8"
    assert result.skipped == {"binder 3": problem}
    assert result.directories == {"/dev", "/run"}


def test_link_has_the_identity_of_its_target(tree: Tree) -> None:
    """The directories of both are watched."""
    tree.char("/run/binderfs/a", BINDERFS, BINDER)
    tree.link("/dev/aosp_binder7", "/run/binderfs/a")
    identity = FileIdentity(BINDERFS, BINDER, tree.lstat("/run/binderfs/a").st_ino, MOUNTED)
    result = scan(tree)
    assert devices(result) == [
        BinderDevice("aosp_binder7", "/dev/aosp_binder7", Kind.BINDERFS, identity, "/run/binderfs", "/run/binderfs/a")
    ]
    assert result.directories == {"/dev", "/run/binderfs"}
    assert result.skipped == {}


def test_device_directory_may_be_a_link(tree: Tree) -> None:
    """Paths have the link, the binderfs has its real path, and the directory that contains the link is watched."""
    tree.char("/run/binderfs/aosp_binder1", BINDERFS, BINDER)
    tree.link("/binders/current", "/run/binderfs")
    result = scan(tree, directory="/binders/current")
    (device,) = devices(result)
    assert (device.path, device.directory) == ("/binders/current/aosp_binder1", "/run/binderfs")
    assert device.identity is not None
    assert device.identity.st_ino == tree.lstat("/run/binderfs/aosp_binder1").st_ino
    assert result.directories == {"/run/binderfs", "/binders"}


@pytest.mark.parametrize(
    ("links", "kind", "watched"),
    [
        pytest.param(["/run/later/a"], Kind.ABSENT, {"/run/later"}, id="dangling"),
        pytest.param(["/dev/aosp_binder1"], Kind.ABSENT, set(), id="loop"),
        pytest.param(["/binder"], Kind.STAND_IN, {"/"}, id="to a file in the root directory"),
        pytest.param(["/run/b/a", "/run/binderfs/a"], Kind.BINDERFS, {"/run/b", "/run/binderfs"}, id="over a link"),
        pytest.param(["/run/binderfs/binder-control"], Kind.OTHER, {"/run/binderfs"}, id="to the control file"),
    ],
)
def test_each_link_on_the_path_to_a_device_is_watched(
    tree: Tree, links: list[str], kind: Kind, watched: set[str]
) -> None:
    """A container that has the control file can create binder devices on the host, so it is never allocated."""
    tree.char("/binder", DEV, NULL)
    tree.char("/run/binderfs/a", BINDERFS, BINDER)
    for link, target in itertools.pairwise(["/dev/aosp_binder1", *links]):
        tree.link(link, target)
    result = scan(tree)
    assert [(device.name, device.kind) for device in devices(result)] == [("aosp_binder1", kind)]
    assert result.directories == {"/dev", *watched}


def test_kind_depends_on_file_system_and_number() -> None:
    """The misc major number is not sufficient: /dev/kvm is 10:232."""
    for mode, device, number, kind in (
        (stat.S_IFCHR, BINDERFS, BINDER, Kind.BINDERFS),
        (stat.S_IFCHR, DEV, BINDER, Kind.CDEV),
        (stat.S_IFCHR, DEV, MISC_BINDER, Kind.CDEV),
        (stat.S_IFCHR, DEV, KVM, Kind.STAND_IN),
        (stat.S_IFREG, BINDERFS, 0, Kind.FILE),
        (stat.S_IFBLK, DEV, BINDER, Kind.OTHER),
    ):
        status = os.stat_result((mode | 0o600, 1, device, 1, 0, 0, 0, 0, 0, 0), {"st_rdev": number})
        assert kind_of(status, DRIVER) is kind


def test_binderfs_directory_is_that_of_the_device_itself(tree: Tree) -> None:
    """A container must not get /dev, even if a device and a control file are bind-mounted there.

    Identities in a binderfs have the time of its mount, because the kernel reuses st_dev for the next mount.
    """
    tree.char("/dev/binder-control", OTHER_BINDERFS, CONTROL)
    tree.char("/run/binderfs/a", BINDERFS, BINDER)
    tree.char("/dev/binderfs/b", OTHER_BINDERFS, BINDER)
    tree.char("/run/binderfs/c", OTHER_BINDERFS, BINDER)
    tree.link("/dev/aosp_binder1", "/run/binderfs/a")
    tree.link("/dev/aosp_binder2", "/dev/binderfs/b")
    tree.char("/dev/aosp_binder3", OTHER_BINDERFS, BINDER)
    tree.link("/dev/aosp_binder4", "/run/binderfs/c")
    tree.char("/dev/aosp_binder5", DEV, MISC_BINDER)
    assert [(device.directory, device.identity and device.identity.file_system) for device in devices(scan(tree))] == [
        ("/run/binderfs", (BINDERFS, MOUNTED)),
        ("/dev/binderfs", (OTHER_BINDERFS, MOUNTED)),
        ("", (OTHER_BINDERFS, 0)),
        ("", (OTHER_BINDERFS, 0)),
        ("", (DEV, 0)),
    ]


def test_binderfs_that_is_mounted_during_the_first_scan_does_not_count_as_replaced_in_the_next_one(tree: Tree) -> None:
    """The state of the driver, which is read first, lacks it."""
    tree.char("/run/binderfs/a", BINDERFS, BINDER)
    tree.link("/dev/aosp_binder1", "/run/binderfs/a")
    first = scanner.scan_devices(tree, Driver(), "/dev", FLAT).devices
    known, past = track({}, {}, first, 0.0, 300.0, Verify.CHAR)
    _, past = track(known, past, scan(tree).devices, 1.0, 300.0, Verify.CHAR)
    assert past == {}


@pytest.mark.parametrize("control", [None, DEV, OTHER_BINDERFS])
def test_directory_without_its_own_binder_control_is_no_binderfs_directory(tree: Tree, control: int | None) -> None:
    tree.char("/run/binderfs/aosp_binder1", BINDERFS, BINDER)
    del tree.files["/run/binderfs/binder-control"]
    if control is not None:
        tree.char("/run/binderfs/binder-control", control, CONTROL)
    (device,) = devices(scan(tree, directory="/run/binderfs"))
    assert (device.kind, device.directory) == (Kind.BINDERFS, "")
    assert device.identity is not None
    assert device.identity.since == 0


def test_nested_devices_are_named_by_directory_and_file(phones: Tree) -> None:
    """Other files of the directories are ignored. All directories are watched; each may be a binderfs of its own."""
    phones.directory("/dev/phones/phone1", DEV)
    phones.directory("/dev/phones/phone1/binder", DEV)
    result = scan_phones(phones)
    assert [(device.path, device.directory) for device in devices(result)] == [
        (f"/dev/phones/{directory}/{name}", f"/dev/phones/{directory}")
        for directory in ("phone9", "phone10")
        for name in ("binder", "hwbinder")
    ]
    assert result.skipped == {}
    assert result.directories == {"/dev/phones", *(f"/dev/phones/phone{number}" for number in (1, 9, 10))}


def test_directories_that_do_not_match_the_pattern_are_not_watched(phones: Tree) -> None:
    """The ID is the value of {set}, without the text around it. A directory whose ID is invalid is skipped."""
    directory = "phone-" + "x" * 60
    phones.directory(f"/dev/phones/{directory}", DEV)
    phones.char(f"/dev/phones/{directory}/binder", DEV, NULL)
    result = scan_phones(phones)
    assert result.skipped == {directory: "the name has 66 characters; a device ID has at most 63"}
    assert f"/dev/phones/{directory}" not in result.directories
    result = scan_phones(phones, Named(["binder"], "phone-{set}/{name}"))
    assert (names(result), result.skipped) == ([f"{directory}/binder"], {})
    assert result.directories == {"/dev/phones", f"/dev/phones/{directory}"}


def test_named_sets_without_directories_use_matching_files_only(tree: Tree) -> None:
    for name in ("hwbinder10", "binder9", "hwbinder9", "null", "binder", "xbinder7", "binder.", "binder-control"):
        tree.char(f"/dev/{name}", DEV, NULL)
    tree.directory("/dev/binder3", DEV)
    result = scan(tree, Named(["binder", "hwbinder"], "{name}{set}"))
    assert names(result) == ["binder9", "hwbinder9", "hwbinder10"]
    assert result.skipped == {"binder.": "it is a path, not a name"}
    assert result.directories == {"/dev"}
    assert "/dev/null" not in tree.calls
