"""One look at a host's files: names, links, kinds and the directory that may be shared."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from typing import NamedTuple

import pytest

from aosp_plugin.binder import scanner
from aosp_plugin.binder.host import Driver
from aosp_plugin.binder.nodes import Identity, Kind, Node
from aosp_plugin.binder.scanner import Look, Scan, kind_of, usable_names

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


class Tree:
    """A host's files in memory, with the driver's view of them."""

    def __init__(self, driver: Driver = DRIVER) -> None:
        self.files: dict[str, File] = {}
        self.driver = driver
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

    def names(self, directory: str) -> list[str]:
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

    def resolve(self, path: str) -> str:
        """Follow links of whole paths, which is all that these tests have."""
        for _ in range(40):
            if path not in self.files or not self.files[path].target:
                return path
            path = self.files[path].target
        raise OSError(errno.ELOOP, "Too many levels of symbolic links", path)


def scan(tree: Tree, directory: str, prefix: str) -> Scan:
    """Look at the tree."""
    return scanner.scan(tree, tree.driver, directory, prefix)


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
    assert scan(tree, "/dev", "aosp_binder") == ((), {}, frozenset({"/dev"}))


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
    """The identity is the node's, the path is the link's, and both directories are watched."""
    tree.char("/run/binderfs/node7", BINDERFS, BINDER)
    tree.link("/dev/aosp_binder7", "/run/binderfs/node7")
    inode = tree.lstat("/run/binderfs/node7").st_ino
    assert scan(tree, "/dev", "aosp_binder") == (
        (
            Node(
                "aosp_binder7",
                "/dev/aosp_binder7",
                Kind.BINDERFS,
                Identity(BINDERFS, BINDER, inode, MOUNTED),
                "/run/binderfs",
            ),
        ),
        {},
        frozenset({"/dev", "/run/binderfs"}),
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
    assert found.nodes == (Node("aosp_binder1", "/dev/aosp_binder1", Kind.ABSENT),)
    assert found.directories == {"/dev", "/run/later"}


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
        "binder,2": "it has a comma, which separates the names that a container is given",
        "binder 3": "it has a space, a control character or bytes that are not UTF-8",
        "binder" + "x" * 60: "it has 66 characters, and a device ID at most 63",
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
    assert Look(tree, tree.driver, "/dev").at("aosp_binder2") is None


def test_a_directory_that_can_not_be_listed_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to make of it is the caller's decision."""

    def refuse(_directory: str) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(tree, "names", refuse)
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
