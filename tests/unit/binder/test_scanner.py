"""One look at a host's files: names, links, kinds and the directory that may be shared."""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import stat
from typing import TYPE_CHECKING, NamedTuple

import pytest

from aosp_plugin.binder.devices.sets import Named
from aosp_plugin.binder.discovery import scanner
from aosp_plugin.binder.discovery.binder_device import BinderDevice, Identity, Kind
from aosp_plugin.binder.discovery.scanner import Look, Scan, kind_of, scan_named, usable_names
from aosp_plugin.binder.driver.host import Driver, Host

if TYPE_CHECKING:
    from pathlib import Path

NESTED = Named(["binder", "hwbinder"])
FLAT = Named(["binder", "hwbinder"], "{name}{set}")
DEV, BINDERFS, OTHER_BINDERFS = 5, 70, 71
BINDER, CONTROL = os.makedev(235, 1), os.makedev(235, 0)
KVM, MISC_BINDER, NULL = os.makedev(10, 232), os.makedev(10, 59), os.makedev(1, 3)
MOUNTED = 1_795_000_000_123_456_789
DRIVER = Driver(frozenset({BINDERFS, OTHER_BINDERFS}), frozenset({235}), frozenset({59}))


class File(NamedTuple):
    """One file of the tree below."""

    mode: int
    device: int
    number: int = 0
    target: str = ""


class Tree(Host):
    """A host's files in memory, with the driver's view of them."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, File] = {}
        self.directory("/", DEV)
        self.directory("/dev", DEV)

    def directory(self, path: str, device: int) -> None:
        """Put a directory there."""
        self.files[path] = File(stat.S_IFDIR, device)

    def char(self, path: str, device: int, number: int) -> None:
        """Put a character device there."""
        self.files[path] = File(stat.S_IFCHR, device, number)

    def link(self, path: str, target: str) -> None:
        """Put a symbolic link there."""
        self.files[path] = File(stat.S_IFLNK, DEV, target=target)

    def listdir(self, directory: str) -> list[str]:
        """List a directory, last names first."""
        found = [posixpath.basename(path) for path in self.files if posixpath.dirname(path) == directory != path]
        return sorted(found, reverse=True)

    def lstat(self, path: str) -> os.stat_result:
        """Look at a file."""
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        file = self.files[path]
        inode = sorted(self.files).index(path) + 100
        seen = (file.mode | 0o600, inode, file.device, 1, 0, 0, 0, 0, 0, 0)
        return os.stat_result(seen, {"st_rdev": file.number, "st_mtime_ns": MOUNTED})

    def resolve(self, path: str, links: set[str] | None = None) -> str:
        """Follow links of whole paths, which is all that these tests have."""
        for _ in range(40):
            if path not in self.files or not self.files[path].target:
                return path
            if links is not None:
                links.add(path)
            path = self.files[path].target
        raise OSError(errno.ELOOP, "Too many levels of symbolic links", path)


def scan(tree: Tree, directory: str, prefix: str) -> Scan:
    """Look at the tree."""
    return scanner.scan(tree, DRIVER, directory, prefix)


@pytest.fixture
def tree() -> Tree:
    """Return a host with an empty /dev and two mounted binderfs."""
    made = Tree()
    made.directory("/run/binderfs", BINDERFS)
    made.directory("/dev/binderfs", OTHER_BINDERFS)
    made.char("/run/binderfs/binder-control", BINDERFS, CONTROL)
    made.char("/dev/binderfs/binder-control", OTHER_BINDERFS, CONTROL)
    return made


def kinds(tree: Tree, prefix: str = "aosp_binder") -> dict[str, Kind]:
    """Return the kind of each node that a look finds."""
    return {node.name: node.kind for node in scan(tree, "/dev", prefix).nodes}


def test_an_empty_directory_has_no_nodes(tree: Tree) -> None:
    """Nothing there is a result, and the directory is still watched."""
    assert scan(tree, "/dev", "aosp_binder") == Scan((), {}, frozenset({"/dev"}))


def test_nodes_come_in_natural_order(tree: Tree) -> None:
    """Ten comes behind nine, whatever order the directory is listed in."""
    for number in (10, 2, 9, 100):
        tree.char(f"/dev/aosp_binder{number}", DEV, NULL)
    assert list(kinds(tree)) == ["aosp_binder2", "aosp_binder9", "aosp_binder10", "aosp_binder100"]


def test_only_names_with_the_prefix_are_taken(tree: Tree) -> None:
    """Other files of /dev are neither nodes nor skipped ones."""
    tree.char("/dev/null", DEV, NULL)
    tree.char("/dev/my_aosp_binder", DEV, NULL)
    tree.char("/dev/aosp_binder", DEV, NULL)
    found = scan(tree, "/dev", "aosp_binder")
    assert [node.name for node in found.nodes] == ["aosp_binder"]
    assert found.skipped == {}


def test_a_link_into_a_binderfs_elsewhere_is_a_binderfs_node(tree: Tree) -> None:
    """The identity is the node's, the path is the link's; both directories are watched, and whose a change would be."""
    tree.char("/run/binderfs/node7", BINDERFS, BINDER)
    tree.link("/dev/aosp_binder7", "/run/binderfs/node7")
    inode = tree.lstat("/run/binderfs/node7").st_ino
    assert scan(tree, "/dev", "aosp_binder") == Scan(
        (
            BinderDevice(
                "aosp_binder7",
                "/dev/aosp_binder7",
                Kind.BINDERFS,
                Identity(BINDERFS, BINDER, inode, MOUNTED),
                "/run/binderfs",
            ),
        ),
        {},
        frozenset({"/dev", "/run/binderfs"}),
        {"/run/binderfs/node7": ["aosp_binder7"]},
    )


def test_the_device_directory_may_be_a_binderfs_itself(tree: Tree) -> None:
    """Nodes right in a binderfs need no link, and share that directory."""
    tree.char("/run/binderfs/aosp_binder1", BINDERFS, BINDER)
    tree.char("/run/binderfs/binder-control", BINDERFS, os.makedev(235, 0))
    tree.directory("/run/binderfs/features", BINDERFS)
    found = scan(tree, "/run/binderfs", "")
    assert [(node.name, node.kind, node.directory) for node in found.nodes] == [
        ("aosp_binder1", Kind.BINDERFS, "/run/binderfs")
    ]


def test_the_device_directory_may_be_a_link(tree: Tree) -> None:
    """Paths are reported as the operator wrote them; the directory that is shared is the real one."""
    tree.char("/run/binderfs/aosp_binder1", BINDERFS, BINDER)
    tree.link("/binders", "/run/binderfs")
    tree.files["/binders/aosp_binder1"] = tree.files["/run/binderfs/aosp_binder1"]
    (node,) = scan(tree, "/binders", "aosp").nodes
    assert (node.path, node.directory) == ("/binders/aosp_binder1", "/run/binderfs")
    assert node.identity is not None
    assert node.identity.inode == tree.lstat("/run/binderfs/aosp_binder1").st_ino


def test_a_dangling_link_is_an_absent_node_whose_directory_is_watched(tree: Tree) -> None:
    """The directory that the link leads to is where the node will appear."""
    tree.link("/dev/aosp_binder1", "/run/later/aosp_binder1")
    found = scan(tree, "/dev", "aosp_binder")
    assert found.nodes == (BinderDevice("aosp_binder1", "/dev/aosp_binder1", Kind.ABSENT),)
    assert found.directories == {"/dev", "/run/later"}


def test_the_links_on_the_way_are_watched_too(tree: Tree) -> None:
    """A change of one between the node's own and the file is as good as one of these."""
    tree.link("/dev/aosp_binder1", "/run/current/one")
    tree.link("/run/current/one", "/run/binderfs/a")
    tree.char("/run/binderfs/a", BINDERFS, BINDER)
    found = scan(tree, "/dev", "aosp_binder")
    assert found.directories == {"/dev", "/run/current", "/run/binderfs"}
    assert found.links == {"/run/current/one": ["aosp_binder1"], "/run/binderfs/a": ["aosp_binder1"]}


def test_where_the_links_to_the_device_directory_stand_is_watched(tree: Tree) -> None:
    """It is another directory once such a link leads elsewhere."""
    tree.link("/nodes/current", "/run/binderfs")
    assert scan(tree, "/nodes/current", "aosp_binder").directories == {"/nodes/current", "/nodes"}


def test_a_link_to_the_root_s_own_file_watches_the_root(tree: Tree) -> None:
    """A target right below / has / for its directory."""
    tree.char("/node", DEV, NULL)
    tree.link("/dev/aosp_binder1", "/node")
    found = scan(tree, "/dev", "aosp_binder")
    assert found.directories == {"/dev", "/"}
    assert found.nodes[0].kind is Kind.STAND_IN


def test_a_loop_of_links_is_an_absent_node(tree: Tree) -> None:
    """A link that leads to itself has nothing behind it, and is no error of the look."""
    tree.link("/dev/aosp_binder1", "/dev/aosp_binder1")
    found = scan(tree, "/dev", "aosp_binder")
    assert [node.kind for node in found.nodes] == [Kind.ABSENT]
    assert found.nodes[0].identity is None
    assert found.directories == {"/dev"}


def test_directories_and_links_to_them_are_ignored(tree: Tree) -> None:
    """A directory with a node's name is neither a node nor a skipped file."""
    tree.directory("/dev/aosp_binderfs", OTHER_BINDERFS)
    tree.link("/dev/aosp_binder_link", "/run/binderfs")
    found = scan(tree, "/dev", "aosp_binder")
    assert (found.nodes, found.skipped) == ((), {})


def test_binder_control_is_never_a_node(tree: Tree) -> None:
    """The file that makes nodes is left out even where the prefix fits."""
    tree.char("/dev/binder-control", OTHER_BINDERFS, BINDER)
    tree.char("/dev/binder-control2", OTHER_BINDERFS, BINDER)
    found = scan(tree, "/dev", "binder")
    assert [node.name for node in found.nodes] == ["binder-control2"]
    assert found.skipped == {}


def test_a_link_to_binder_control_is_never_a_node(tree: Tree) -> None:
    """Whoever holds it makes nodes on the host: another name for it does not make it one to hand out."""
    tree.char("/run/binderfs/binder-control", BINDERFS, BINDER)
    tree.link("/dev/aosp_binder1", "/run/binderfs/binder-control")
    assert {node.kind for node in scan(tree, "/dev", "aosp_binder").nodes} <= {Kind.OTHER}


def test_names_that_can_not_be_devices_are_skipped_with_the_reason() -> None:
    """They are told apart from those that are simply not asked for."""
    names = ["binder1", "binder,2", "binder 3", "x,4", "binder" + "x" * 60, "binder-control"]
    usable, skipped = usable_names(names, "binder")
    assert usable == ["binder1"]
    assert skipped == {
        "binder,2": "the name contains a comma, which separates the names in a container's environment variable",
        "binder 3": "the name contains a space, a control character or bytes that are not UTF-8",
        "binder" + "x" * 60: "the name has 66 characters; a device ID has at most 63",
    }


def test_skipped_names_are_not_looked_at(tree: Tree) -> None:
    """A look tells them along with the nodes."""
    tree.char("/dev/aosp_binder,1", DEV, NULL)
    tree.char("/dev/aosp_binder1", DEV, NULL)
    found = scan(tree, "/dev", "aosp_binder")
    assert [node.name for node in found.nodes] == ["aosp_binder1"]
    assert list(found.skipped) == ["aosp_binder,1"]


def test_a_file_that_went_away_since_the_listing_is_no_node(tree: Tree) -> None:
    """Between the listing and the look at a name it may be removed."""
    tree.char("/dev/aosp_binder1", DEV, NULL)
    assert Look(tree, DRIVER, "/dev").at("aosp_binder2") is None


def test_a_directory_that_can_not_be_listed_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to make of it is the caller's decision."""

    def refuse(_directory: str) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(tree, "listdir", refuse)
    with pytest.raises(PermissionError):
        scan(tree, "/dev", "aosp_binder")


@pytest.mark.parametrize(
    ("mode", "device", "number", "kind"),
    [
        (stat.S_IFCHR, BINDERFS, BINDER, Kind.BINDERFS),
        (stat.S_IFCHR, DEV, BINDER, Kind.CDEV),
        (stat.S_IFCHR, DEV, MISC_BINDER, Kind.CDEV),
        (stat.S_IFCHR, DEV, KVM, Kind.STAND_IN),
        (stat.S_IFCHR, DEV, NULL, Kind.STAND_IN),
        (stat.S_IFREG, DEV, 0, Kind.FILE),
        (stat.S_IFREG, BINDERFS, 0, Kind.FILE),
        (stat.S_IFBLK, DEV, BINDER, Kind.OTHER),
        (stat.S_IFSOCK, DEV, 0, Kind.OTHER),
        (stat.S_IFIFO, DEV, 0, Kind.OTHER),
    ],
)
def test_the_kind_is_told_by_file_system_and_number(mode: int, device: int, number: int, kind: Kind) -> None:
    """Neither the name nor the misc major says that a node is binder's: KVM's is 10:232."""
    seen = os.stat_result((mode | 0o600, 1, device, 1, 0, 0, 0, 0, 0, 0), {"st_rdev": number})
    assert kind_of(seen, DRIVER) is kind


def test_a_binderfs_is_told_from_the_next_one_on_its_number(tree: Tree) -> None:
    """The kernel gives a file system's number to the next one; when it was mounted tells them apart."""
    tree.char("/run/binderfs/a", BINDERFS, BINDER)
    tree.link("/dev/aosp_binder1", "/run/binderfs/a")
    tree.char("/dev/aosp_binder2", DEV, MISC_BINDER)
    first, second = (node.identity for node in scan(tree, "/dev", "aosp_binder").nodes)
    assert first is not None
    assert second is not None
    assert first.file_system == (BINDERFS, MOUNTED)
    assert second.file_system == (DEV, 0)


def test_a_single_node_bound_into_dev_shares_no_directory(tree: Tree) -> None:
    """A binderfs node that was bind-mounted onto a file of /dev must not have /dev shown to containers."""
    tree.char("/dev/aosp_binder1", BINDERFS, BINDER)
    (node,) = scan(tree, "/dev", "aosp_binder").nodes
    assert (node.kind, node.directory) == (Kind.BINDERFS, "")
    tree.char("/dev/binder-control", BINDERFS, CONTROL)
    (node,) = scan(tree, "/dev", "aosp_binder").nodes
    assert (node.kind, node.directory) == (Kind.BINDERFS, "")


def test_nodes_that_are_not_of_a_binderfs_share_no_directory(tree: Tree) -> None:
    """A misc node and a stand-in stand right in /dev, which is nobody's to see, whatever else is in it."""
    tree.char("/dev/binder-control", DEV, MISC_BINDER)
    tree.char("/dev/aosp_binder1", DEV, MISC_BINDER)
    tree.char("/dev/aosp_binder2", DEV, NULL)
    assert [node.directory for node in scan(tree, "/dev", "aosp_binder").nodes] == ["", ""]


def test_each_node_shares_its_own_binderfs(tree: Tree) -> None:
    """Two binderfs side by side, and a bound node between them, are not mixed up."""
    tree.char("/run/binderfs/a", BINDERFS, BINDER)
    tree.char("/dev/binderfs/b", OTHER_BINDERFS, os.makedev(235, 2))
    tree.link("/dev/aosp_binder1", "/run/binderfs/a")
    tree.link("/dev/aosp_binder2", "/dev/binderfs/b")
    tree.char("/dev/aosp_binder3", OTHER_BINDERFS, os.makedev(235, 3))
    tree.char("/run/binderfs/c", OTHER_BINDERFS, os.makedev(235, 4))
    tree.link("/dev/aosp_binder4", "/run/binderfs/c")
    assert [node.directory for node in scan(tree, "/dev", "aosp_binder").nodes] == [
        "/run/binderfs",
        "/dev/binderfs",
        "",
        "",
    ]


@pytest.mark.parametrize("control", [None, DEV, OTHER_BINDERFS])
def test_a_directory_without_a_binder_control_of_its_own_is_not_shared(tree: Tree, control: int | None) -> None:
    """It may look like a binderfs by its number; the control file has to be there, and of the same file system."""
    tree.char("/run/binderfs/a", BINDERFS, BINDER)
    tree.link("/dev/aosp_binder1", "/run/binderfs/a")
    del tree.files["/run/binderfs/binder-control"]
    if control is not None:
        tree.char("/run/binderfs/binder-control", control, CONTROL)
    (node,) = scan(tree, "/dev", "aosp_binder").nodes
    assert (node.kind, node.directory) == (Kind.BINDERFS, "")
    assert node.identity is not None
    assert node.identity.since == 0


def test_the_root_may_be_the_device_directory(tree: Tree) -> None:
    """Paths have one slash at their beginning."""
    tree.char("/aosp_binder1", DEV, NULL)
    tree.char("/node", BINDERFS, BINDER)
    tree.char("/binder-control", BINDERFS, CONTROL)
    tree.directory("/", BINDERFS)
    tree.link("/aosp_binder2", "/node")
    assert [(node.path, node.directory) for node in scan(tree, "/", "aosp_binder").nodes] == [
        ("/aosp_binder1", ""),
        ("/aosp_binder2", "/"),
    ]


def test_a_binderfs_whose_directory_can_not_be_looked_at_is_not_shared(tree: Tree) -> None:
    """The directory may have gone since the node was seen in it."""
    tree.char("/run/gone/a", BINDERFS, BINDER)
    tree.link("/dev/aosp_binder1", "/run/gone/a")
    (node,) = scan(tree, "/dev", "aosp_binder").nodes
    assert (node.kind, node.directory) == (Kind.BINDERFS, "")


def test_the_shared_directory_is_looked_at_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes of one binderfs cost one look at its directory."""
    for number in range(4):
        tree.char(f"/run/binderfs/n{number}", BINDERFS, BINDER)
        tree.link(f"/dev/aosp_binder{number}", f"/run/binderfs/n{number}")
    asked: list[str] = []
    lstat = tree.lstat

    def noted(path: str) -> os.stat_result:
        asked.append(path)
        return lstat(path)

    monkeypatch.setattr(tree, "lstat", noted)
    assert {node.directory for node in scan(tree, "/dev", "aosp_binder").nodes} == {"/run/binderfs"}
    assert asked.count("/run/binderfs") == 1


@pytest.fixture
def phones(tree: Tree) -> Tree:
    """Return a host with /dev/phones, in which two phones have a binderfs each."""
    tree.directory("/dev/phones", DEV)
    for phone, device in (("phone10", BINDERFS), ("phone9", OTHER_BINDERFS)):
        tree.directory(f"/dev/phones/{phone}", device)
        for number, name in enumerate(("binder-control", "binder", "hwbinder", "features")):
            tree.char(f"/dev/phones/{phone}/{name}", device, os.makedev(235, number))
    return tree


def scan_phones(tree: Tree, layout: Named = NESTED) -> Scan:
    """Look at the phones of the tree."""
    return scan_named(tree, DRIVER, "/dev/phones", layout)


def test_the_nodes_of_a_set_may_be_in_a_directory_of_their_own(phones: Tree) -> None:
    """They are called by directory and name; other files there are none, and all the directories are watched."""
    found = scan_phones(phones)
    assert [(node.name, node.path) for node in found.nodes] == [
        ("phone9/binder", "/dev/phones/phone9/binder"),
        ("phone9/hwbinder", "/dev/phones/phone9/hwbinder"),
        ("phone10/binder", "/dev/phones/phone10/binder"),
        ("phone10/hwbinder", "/dev/phones/phone10/hwbinder"),
    ]
    assert found.skipped == {}
    assert found.directories == {"/dev/phones", "/dev/phones/phone9", "/dev/phones/phone10"}


def test_each_phone_may_have_a_binderfs_of_its_own(phones: Tree) -> None:
    """A node's directory is the mount that it is in, and its file system is told by that one's binder-control."""
    assert [
        (node.kind, node.directory, node.identity.file_system) for node in scan_phones(phones).nodes if node.identity
    ] == [
        *[(Kind.BINDERFS, "/dev/phones/phone9", (OTHER_BINDERFS, MOUNTED))] * 2,
        *[(Kind.BINDERFS, "/dev/phones/phone10", (BINDERFS, MOUNTED))] * 2,
    ]


def test_a_set_s_directory_that_is_no_binderfs_shares_nothing(phones: Tree) -> None:
    """Single nodes may be bound, or linked, into a plain directory."""
    phones.directory("/dev/phones/phone1", DEV)
    phones.char("/dev/phones/phone1/binder", BINDERFS, BINDER)
    phones.link("/dev/phones/phone1/hwbinder", "/run/binderfs/a")
    phones.char("/run/binderfs/a", BINDERFS, BINDER)
    found = scan_phones(phones)
    assert [(node.name, node.kind, node.directory) for node in found.nodes[:2]] == [
        ("phone1/binder", Kind.BINDERFS, ""),
        ("phone1/hwbinder", Kind.BINDERFS, "/run/binderfs"),
    ]
    assert {"/dev/phones/phone1", "/run/binderfs"} < found.directories


def test_a_set_s_directory_may_be_a_link(phones: Tree) -> None:
    """Paths are as the link has them, the directory is the real one; the way there is watched as it is written."""
    phones.link("/dev/phones/phone1", "/run/binderfs")
    phones.char("/run/binderfs/binder", BINDERFS, BINDER)
    found = scan_phones(phones)
    inode = phones.lstat("/run/binderfs/binder").st_ino
    assert found.nodes[0] == BinderDevice(
        "phone1/binder",
        "/dev/phones/phone1/binder",
        Kind.BINDERFS,
        Identity(BINDERFS, BINDER, inode, MOUNTED),
        "/run/binderfs",
    )
    assert found.directories == {"/dev/phones", *(f"/dev/phones/phone{number}" for number in (1, 9, 10))}


def test_a_directory_is_watched_before_it_has_nodes(phones: Tree) -> None:
    """They may be made later; where a link leads nowhere yet, the directory will appear in another one."""
    phones.directory("/dev/phones/phone1", DEV)
    phones.link("/dev/phones/phone2", "/run/later/phone2")
    found = scan_phones(phones)
    assert len(found.nodes) == 4
    assert found.directories == {
        "/dev/phones",
        "/dev/phones/phone1",
        "/dev/phones/phone9",
        "/dev/phones/phone10",
        "/run/later",
    }


def test_what_is_no_directory_is_no_set_s(phones: Tree) -> None:
    """Neither a file, nor a link to one, nor a loop of links is watched, or told of."""
    phones.char("/dev/phones/binder", DEV, NULL)
    phones.char("/dev/phones/a,b", DEV, NULL)
    phones.link("/dev/phones/link", "/dev/phones/phone9/binder")
    phones.link("/dev/phones/loop", "/dev/phones/loop")
    found = scan_phones(phones)
    assert len(found.nodes) == 4
    assert found.skipped == {}
    assert found.directories == {"/dev/phones", "/dev/phones/phone9", "/dev/phones/phone10"}


def test_a_directory_in_the_place_of_a_set_s_node_is_ignored(phones: Tree) -> None:
    """As it is among nodes that are in no set."""
    phones.directory("/dev/phones/phone1", DEV)
    phones.directory("/dev/phones/phone1/binder", DEV)
    assert len(scan_phones(phones).nodes) == 4


def test_directories_that_do_not_fit_the_pattern_are_passed_over(phones: Tree) -> None:
    """They are not watched either."""
    found = scan_phones(phones, Named(["binder"], "phone1{set}/hw{name}"))
    assert [node.name for node in found.nodes] == ["phone10/hwbinder"]
    assert found.directories == {"/dev/phones", "/dev/phones/phone10"}


def test_a_directory_that_can_not_be_a_device_is_skipped_with_the_reason(phones: Tree) -> None:
    """What {set} stands for becomes the ID; the text around it does not count."""
    long = "x" * 64
    for name in ("a,b", "a b", long, "phone-" + long[:60]):
        phones.directory(f"/dev/phones/{name}", DEV)
        phones.char(f"/dev/phones/{name}/binder", DEV, NULL)
    found = scan_phones(phones)
    assert found.skipped == {
        "a,b": "the name contains a comma, which separates the names in a container's environment variable",
        "a b": "the name contains a space, a control character or bytes that are not UTF-8",
        long: "the name has 64 characters; a device ID has at most 63",
        "phone-" + long[:60]: "the name has 66 characters; a device ID has at most 63",
    }
    assert len(found.nodes) == 4
    assert found.directories == {"/dev/phones", "/dev/phones/phone9", "/dev/phones/phone10"}
    found = scan_phones(phones, Named(["binder"], "phone-{set}/{name}"))
    assert ([node.name for node in found.nodes], found.skipped) == ([f"phone-{long[:60]}/binder"], {})


def test_binder_control_is_no_set_s_directory_or_node(phones: Tree) -> None:
    """Whatever the pattern makes of its name."""
    phones.directory("/dev/phones/binder-control", DEV)
    phones.char("/dev/phones/binder-control/binder", DEV, NULL)
    assert [node.name for node in scan_phones(phones).nodes if "control" in node.name] == []
    phones.link("/dev/phones/phone1", "/run/binderfs")
    phones.link("/run/binderfs/binder", "/run/binderfs/binder-control")
    assert scan_phones(phones).nodes[0].kind is Kind.OTHER
    phones.char("/dev/phones/binder7", DEV, NULL)
    phones.files["/dev/phones/binder-control"] = phones.files["/dev/phones/binder7"]
    assert [node.name for node in scan_phones(phones, FLAT).nodes] == ["binder7"]


def test_the_device_directory_of_sets_may_be_a_link(phones: Tree) -> None:
    """The way to a set's directory begins where it leads."""
    phones.link("/phones", "/dev/phones")
    phones.files["/phones/phone9"] = phones.files["/dev/phones/phone9"]
    found = scan_named(phones, DRIVER, "/phones", NESTED)
    assert [(node.path, node.directory) for node in found.nodes] == [
        ("/phones/phone9/binder", "/dev/phones/phone9"),
        ("/phones/phone9/hwbinder", "/dev/phones/phone9"),
    ]
    assert found.directories == {"/phones", "/phones/phone9", "/"}


def test_one_node_of_a_set_is_looked_at_by_its_name(phones: Tree) -> None:
    """The same as a look at all of them finds; nothing where it, or its directory, is gone."""
    look = Look(phones, DRIVER, "/dev/phones")
    assert look.at("phone9/hwbinder") == scan_phones(phones).nodes[1]
    assert look.at("phone9/vndbinder") is None
    phones.char("/dev/phones/binder", DEV, NULL)
    assert look.at("phone1/binder") is None


def test_a_set_s_directory_is_looked_at_once(phones: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its nodes share the outcome."""
    phones.directory("/dev/phones/phone1", DEV)
    for name in NESTED.files:
        phones.char(f"/dev/phones/phone1/{name}", DEV, NULL)
    asked: list[str] = []
    lstat = phones.lstat

    def noted(path: str) -> os.stat_result:
        asked.append(path)
        return lstat(path)

    monkeypatch.setattr(phones, "lstat", noted)
    assert len(scan_phones(phones).nodes) == 6
    assert asked.count("/dev/phones/phone1") == 1


@pytest.mark.parametrize("vanishes_at", ["/dev/phones/phone1", "/dev/phones/phone1/binder"])
def test_a_directory_that_vanishes_during_the_look_is_no_error(tmp_path: Path, vanishes_at: str) -> None:
    """What was seen of it until then may be told; the next look tells the rest."""
    for name in ("phone1/binder", "phone1/hwbinder", "phone2/binder"):
        path = tmp_path / "dev/phones" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    class Vanishing(Host):
        def lstat(self, path: str) -> os.stat_result:
            seen = super().lstat(path)
            if path == vanishes_at:
                shutil.rmtree(tmp_path / "dev/phones/phone1")
            return seen

    found = scan_named(Vanishing(str(tmp_path)), DRIVER, "/dev/phones", NESTED)
    kept = [node.name for node in found.nodes]
    assert kept == (["phone2/binder"] if vanishes_at.endswith("phone1") else ["phone1/binder", "phone2/binder"])


def test_links_of_sets_are_followed_under_the_host_s_root(tmp_path: Path) -> None:
    """An absolute link of the host must not lead out of the place where this process sees its files."""
    real = tmp_path / "run/phones/7"
    real.mkdir(parents=True)
    (real / "binder").touch()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/phone7").symlink_to("/run/phones/7")
    host = Host(str(tmp_path))
    layout = Named(["binder", "hwbinder"], "phone{set}/{name}")
    (node,) = scan_named(host, DRIVER, "/dev", layout).nodes
    assert (node.name, node.path, node.kind) == ("phone7/binder", "/dev/phone7/binder", Kind.FILE)
    assert Look(host, DRIVER, "/dev").at("phone7/binder") == node


def test_nodes_of_named_sets_may_stand_in_the_device_directory(tree: Tree) -> None:
    """Those alone that fit the pattern; the others of /dev are not even looked at."""
    for name in ("hwbinder10", "binder9", "hwbinder9", "null", "binder", "xbinder7"):
        tree.char(f"/dev/{name}", DEV, NULL)
    tree.directory("/dev/binder3", DEV)
    tree.link("/dev/hwbinder9", "/run/x/hwbinder9")
    tree.char("/run/x/hwbinder9", DEV, NULL)
    found = scan_named(tree, DRIVER, "/dev", Named(["binder", "hwbinder"], "{name}{set}"))
    assert [(node.name, node.path) for node in found.nodes] == [
        ("binder9", "/dev/binder9"),
        ("hwbinder9", "/dev/hwbinder9"),
        ("hwbinder10", "/dev/hwbinder10"),
    ]
    assert found.skipped == {}
    assert found.directories == {"/dev", "/run/x"}


def test_named_sets_that_can_not_be_devices_are_skipped_by_their_files(tree: Tree) -> None:
    """It is what {set} stands for that has to be an ID."""
    for name in ("binder 1", "binder.", "hwbinder" + "x" * 63, "binder" + "x" * 64):
        tree.char(f"/dev/{name}", DEV, NULL)
    found = scan_named(tree, DRIVER, "/dev", FLAT)
    assert [node.name for node in found.nodes] == ["hwbinder" + "x" * 63]
    assert found.skipped == {
        "binder 1": "the name contains a space, a control character or bytes that are not UTF-8",
        "binder.": "it is a path, not a name",
        "binder" + "x" * 64: "the name has 64 characters; a device ID has at most 63",
    }


def test_a_directory_of_sets_that_can_not_be_listed_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for nodes that are in no set."""

    def refuse(_directory: str) -> list[str]:
        raise FileNotFoundError

    monkeypatch.setattr(tree, "listdir", refuse)
    with pytest.raises(FileNotFoundError):
        scan_phones(tree)
