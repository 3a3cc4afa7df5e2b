"""Binder as a backend, over real directories: plain files, stand-ins made with mknod, and links between them."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.backend import BinderBackend, Settings
from aosp_plugin.binder.devices.edits import OWN_BINDERFS, Isolation, Policy, SharedPath
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.errors import (
    BackendError,
    BinderfsError,
    BinderMissingError,
    NotPermittedError,
    UnhealthyDeviceError,
    UnknownDeviceError,
)
from aosp_plugin.framework.edits import ContainerEdits, DeviceNode, Mount
from aosp_plugin.framework.inventory import Device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.framework.backend import Backend

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="makes device nodes, which needs root")

FORGET = 300.0
NULL = os.makedev(1, 3)
NO_SHARED = Policy(shared_mounts=(), shared_devices=())
ENVIRONMENT = {"PATH": "/system/bin:/system/xbin"}


class Clock:
    """A time that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return it."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """Return the device directory."""
    made = tmp_path / "dev"
    made.mkdir()
    return made


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """Return a directory on another file system than the device directory's."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shm.stat().st_dev == Path("/tmp").stat().st_dev:
        pytest.skip("this machine has no second file system to write to at /dev/shm")
    with tempfile.TemporaryDirectory(dir=shm) as made:
        yield Path(made)


def backend(directory: Path | str, clock: Clock | None = None, **options: Any) -> BinderBackend:
    """Return a backend that takes plain files for nodes, unless told otherwise."""
    settings: dict[str, Any] = {
        "prefix": "aosp_binder",
        "verify": Verify.FILE,
        "missing_device_ttl": FORGET,
        "policy": NO_SHARED,
        "resource_name": "aosp.io/binder",
    }
    settings |= options
    host = settings.pop("host", Host())
    return BinderBackend(host, Settings(directory=str(directory), **settings), clock or Clock())


def looked(made: BinderBackend) -> dict[str, str]:
    """Look, and return the reason of each device in order."""
    made.scan()
    return {device.id: device.reason for device in made.devices()}


def make(directory: Path, *numbers: int) -> None:
    """Make plain files."""
    for number in numbers:
        (directory / f"aosp_binder{number}").touch()


def make_chars(directory: Path, *names: str) -> None:
    """Make copies of /dev/null."""
    for name in names:
        os.mknod(directory / name, 0o20600, NULL)


def claim(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Have the host say that this directory's file system is a binderfs, and have it look like one."""
    (directory / "binder-control").touch()
    driver = Driver(file_systems=frozenset({directory.stat().st_dev}))
    monkeypatch.setattr(Host, "driver", lambda _self: driver)


def test_nothing_is_known_before_the_first_look(dev: Path) -> None:
    """There are no devices, and the directory is the one to watch."""
    made: Backend = backend(dev)
    assert list(made.devices()) == []
    assert made.directories() == {str(dev)}
    assert (made.get_preferred_allocation_available, made.pre_start_required) == (True, False)


def test_devices_come_in_natural_order(dev: Path) -> None:
    """As they are told to the kubelet."""
    make(dev, 10, 9, 100, 2)
    (dev / "null").touch()
    (dev / "aosp_binderfs").mkdir()
    made = backend(dev)
    made.scan()
    assert made.devices() == [Device(f"aosp_binder{number}") for number in (2, 9, 10, 100)]


def test_an_empty_directory_has_no_devices(dev: Path) -> None:
    """That is a state, and no error."""
    assert looked(backend(dev)) == {}


def test_a_node_that_vanishes_is_missing_and_forgotten_after_a_while(dev: Path, clock: Clock) -> None:
    """And is healthy at once where it comes back."""
    make(dev, 1, 2)
    made = backend(dev, clock)
    assert looked(made) == {"aosp_binder1": "", "aosp_binder2": ""}
    (dev / "aosp_binder1").unlink()
    clock.now = 10.0
    assert looked(made) == {"aosp_binder1": "missing", "aosp_binder2": ""}
    make(dev, 1)
    assert looked(made) == {"aosp_binder1": "", "aosp_binder2": ""}
    (dev / "aosp_binder1").unlink()
    clock.now = 20.0
    looked(made)
    clock.now = 20.0 + FORGET
    assert looked(made) == {"aosp_binder2": ""}


def test_a_dangling_link_is_missing_until_its_node_is_there(dev: Path, tmp_path: Path) -> None:
    """The directory that it leads to is watched, whether it is there or not."""
    (dev / "aosp_binder1").symlink_to(tmp_path / "later" / "node")
    made = backend(dev)
    assert looked(made) == {"aosp_binder1": "missing"}
    assert made.directories() == {str(dev), str(tmp_path / "later")}
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "node").touch()
    assert looked(made) == {"aosp_binder1": ""}


@pytest.mark.parametrize("verify", [Verify.CHAR, Verify.BINDER, Verify.PROBE])
def test_a_plain_file_is_not_a_device_where_devices_are_asked_for(dev: Path, verify: Verify) -> None:
    """As a container's shell leaves one behind that wrote to a node that was not there."""
    make(dev, 1)
    os.mkfifo(dev / "aosp_binder2")
    assert looked(backend(dev, verify=verify)) == {"aosp_binder1": "not-a-device", "aosp_binder2": "not-a-device"}


@needs_root
def test_a_stand_in_is_taken_at_char_and_is_not_binder_at_binder(dev: Path) -> None:
    """A copy of /dev/null has the right type and the wrong number."""
    make_chars(dev, "aosp_binder1")
    assert looked(backend(dev, verify=Verify.FILE)) == {"aosp_binder1": ""}
    assert looked(backend(dev, verify=Verify.CHAR)) == {"aosp_binder1": ""}
    assert looked(backend(dev, verify=Verify.BINDER)) == {"aosp_binder1": "not-binder"}
    assert looked(backend(dev, verify=Verify.PROBE)) == {"aosp_binder1": "not-binder"}


def turn(link: Path, target: Path) -> None:
    """Have a link lead to a file, which is made."""
    target.touch()
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def test_a_node_on_another_file_system_is_replaced_until_the_wait_is_over(
    dev: Path, tmp_path: Path, elsewhere: Path, clock: Clock
) -> None:
    """As after a binderfs was mounted anew while containers held nodes of the old one."""
    link = dev / "aosp_binder1"
    turn(link, tmp_path / "node")
    made = backend(dev, clock)
    assert looked(made) == {"aosp_binder1": ""}
    turn(link, elsewhere / "node")
    clock.now = 5.0
    assert looked(made) == {"aosp_binder1": "replaced"}
    with pytest.raises(UnhealthyDeviceError, match="device 'aosp_binder1' is unhealthy: replaced"):
        made.allocate(["aosp_binder1"])
    assert made.directories() == {str(dev), str(elsewhere)}
    clock.now = 5.0 + FORGET
    assert looked(made) == {"aosp_binder1": ""}


def test_whoever_forgets_takes_what_is_there_for_right(dev: Path, tmp_path: Path, elsewhere: Path) -> None:
    """Replaced nodes are healthy at the next look, and missing ones are gone; until then nothing changes."""
    link = dev / "aosp_binder1"
    turn(link, tmp_path / "node")
    make(dev, 2)
    made = backend(dev)
    looked(made)
    turn(link, elsewhere / "node")
    (dev / "aosp_binder2").unlink()
    assert looked(made) == {"aosp_binder1": "replaced", "aosp_binder2": "missing"}
    made.forget()
    assert looked(made) == {"aosp_binder1": ""}


def test_whoever_forgets_before_a_look_that_fails_forgets_at_the_next(
    dev: Path, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a look has succeeded, what is known stays."""
    link = dev / "aosp_binder1"
    turn(link, tmp_path / "node")
    made = backend(dev)
    looked(made)
    turn(link, elsewhere / "node")
    made.forget()

    def refuse(_self: Host, _directory: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Host, "listdir", refuse)
        with pytest.raises(PermissionError):
            made.scan()
    with pytest.raises(UnhealthyDeviceError, match="replaced"):
        made.allocate(["aosp_binder1"])
    assert looked(made) == {"aosp_binder1": ""}
    turn(link, tmp_path / "node")
    assert looked(made) == {"aosp_binder1": "replaced"}


def test_forgetting_does_not_make_a_vanished_directory_an_error(dev: Path) -> None:
    """It was there once, so that its name is not wrong."""
    made = backend(dev)
    made.scan()
    dev.rmdir()
    made.forget()
    assert looked(made) == {}


def test_a_directory_that_was_never_there_is_an_error(tmp_path: Path) -> None:
    """At every look, until it is there: its name is most likely wrong."""
    made = backend(tmp_path / "none")
    for _ in range(2):
        with pytest.raises(BackendError, match=f"the device directory {tmp_path}/none can't be read: "):
            made.scan()
    (tmp_path / "none").mkdir()
    make(tmp_path / "none", 1)
    assert looked(made) == {"aosp_binder1": ""}


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    """It can't be listed."""
    (tmp_path / "dev").touch()
    with pytest.raises(BackendError, match="Not a directory"):
        backend(tmp_path / "dev").scan()


def test_a_directory_that_can_not_be_listed_is_the_system_s_error(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices stay as they were: nobody knows whether they are there."""
    make(dev, 1)
    made = backend(dev)
    looked(made)

    def refuse(_self: Host, _directory: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Host, "listdir", refuse)
    with pytest.raises(PermissionError):
        made.scan()
    assert made.devices() == [Device("aosp_binder1")]


def test_a_directory_that_vanishes_has_lost_its_nodes(dev: Path, tmp_path: Path) -> None:
    """They are missing, the directory is still watched, and all are back with it."""
    (tmp_path / "nodes").mkdir()
    make(dev, 1)
    turn(dev / "aosp_binder2", tmp_path / "nodes" / "2")
    made = backend(dev)
    looked(made)
    away = dev.rename(tmp_path / "away")
    assert looked(made) == {"aosp_binder1": "missing", "aosp_binder2": "missing"}
    assert made.directories() == {str(dev)}
    away.rename(dev)
    assert looked(made) == {"aosp_binder1": "", "aosp_binder2": ""}
    assert made.directories() == {str(dev), str(tmp_path / "nodes")}


@needs_root
def test_a_binderfs_node_is_handed_over_as_device_mount_and_directory(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole answer, for nodes in the kubelet's random order, one of them sent twice."""
    nodes = tmp_path / "binderfs"
    nodes.mkdir()
    make_chars(nodes, "n2", "n10")
    (dev / "aosp_binder2").symlink_to(nodes / "n2")
    (dev / "aosp_binder10").symlink_to("../binderfs/n10")
    claim(monkeypatch, nodes)
    policy = Policy(
        permissions="rwm",
        shared_mounts=(SharedPath(OWN_BINDERFS, "/dev/binderfs"), SharedPath(str(tmp_path), "/shared")),
        shared_devices=(SharedPath(str(nodes / "n2"), "/dev/ashmem"), SharedPath("/none", "/dev/none")),
    )
    made = backend(dev, verify=Verify.BINDER, policy=policy)
    assert looked(made) == {"aosp_binder2": "", "aosp_binder10": ""}
    assert made.allocate(["aosp_binder10", "aosp_binder2", "aosp_binder10"]) == ContainerEdits(
        environment={"BINDER_VISIBLE_DEVICES": "aosp_binder2,aosp_binder10", **ENVIRONMENT},
        devices=[
            DeviceNode(host_path=f"{dev}/aosp_binder2", container_path="/dev/aosp_binder2", permissions="rwm"),
            DeviceNode(host_path=f"{dev}/aosp_binder10", container_path="/dev/aosp_binder10", permissions="rwm"),
            DeviceNode(host_path=f"{nodes}/n2", container_path="/dev/ashmem", permissions="rwm"),
        ],
        mounts=[
            Mount(host_path=f"{dev}/aosp_binder2", container_path="/dev/aosp_binder2", read_only=True),
            Mount(host_path=f"{dev}/aosp_binder10", container_path="/dev/aosp_binder10", read_only=True),
            Mount(host_path=str(nodes), container_path="/dev/binderfs", read_only=True),
            Mount(host_path=str(tmp_path), container_path="/shared", read_only=True),
        ],
    )


@needs_root
def test_strict_isolation_hands_over_the_own_nodes_alone(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No directory of the host is mounted."""
    make_chars(dev, "aosp_binder1")
    claim(monkeypatch, dev)
    policy = Policy(isolation=Isolation.STRICT, shared_devices=())
    made = backend(dev, verify=Verify.CHAR, policy=policy)
    looked(made)
    assert [mount.container_path for mount in made.allocate(["aosp_binder1"]).mounts] == ["/dev/aosp_binder1"]


def test_a_plain_node_is_a_device_alone_and_answers_do_not_leak(dev: Path) -> None:
    """The second container's answer has nothing of the first one's."""
    make(dev, 1, 2)
    made = backend(dev)
    looked(made)
    for number in (1, 2, 1):
        name = f"aosp_binder{number}"
        assert made.allocate([name]) == ContainerEdits(
            environment={"BINDER_VISIBLE_DEVICES": name, **ENVIRONMENT},
            devices=[DeviceNode(host_path=f"{dev}/{name}", container_path=f"/dev/{name}", permissions="rw")],
            mounts=[],
        )


def vanish(dev: Path) -> None:
    """Remove the node."""
    (dev / "aosp_binder1").unlink()


def become_a_directory(dev: Path) -> None:
    """Put a directory in its place."""
    vanish(dev)
    (dev / "aosp_binder1").mkdir()


def dangle(dev: Path) -> None:
    """Put a link in its place that leads nowhere."""
    vanish(dev)
    (dev / "aosp_binder1").symlink_to("nowhere")


def become_a_pipe(dev: Path) -> None:
    """Put a pipe in its place."""
    vanish(dev)
    os.mkfifo(dev / "aosp_binder1")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (vanish, "missing"),
        (become_a_directory, "missing"),
        (dangle, "missing"),
        (become_a_pipe, "not-a-device"),
    ],
)
def test_a_node_that_changed_since_the_last_look_is_refused(dev: Path, change: Any, reason: str) -> None:
    """The answer names the device and the reason, and no part of the request is answered."""
    make(dev, 1, 2)
    made = backend(dev)
    looked(made)
    change(dev)
    with pytest.raises(UnhealthyDeviceError, match=f"^device 'aosp_binder1' is unhealthy: {reason}$") as raised:
        made.allocate(["aosp_binder2", "aosp_binder1"])
    assert raised.value.code == "FAILED_PRECONDITION"
    assert made.devices() == [Device("aosp_binder1"), Device("aosp_binder2")]


def test_a_node_that_was_moved_to_another_file_system_since_is_refused(
    dev: Path, tmp_path: Path, elsewhere: Path
) -> None:
    """A remount may come between the look and the request."""
    turn(dev / "aosp_binder1", tmp_path / "node")
    made = backend(dev)
    looked(made)
    turn(dev / "aosp_binder1", elsewhere / "node")
    with pytest.raises(UnhealthyDeviceError, match="unhealthy: replaced"):
        made.allocate(["aosp_binder1"])


def test_a_node_that_is_there_but_was_never_looked_at_is_refused(dev: Path) -> None:
    """What was never told to the kubelet is not handed out."""
    made = backend(dev)
    for _ in range(2):
        make(dev, 1)
        with pytest.raises(UnknownDeviceError, match="device 'aosp_binder1' is unknown"):
            made.allocate(["aosp_binder1"])
        vanish(dev)
        made.scan()


SHARED = "a shared path does not exist, and containers do without it"


def shared_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the paths that were said to be absent, and forget them."""
    paths = [vars(record)["path"] for record in caplog.records if record.getMessage() == SHARED]
    caplog.clear()
    return paths


def test_shared_paths_are_handed_over_where_they_exist(
    dev: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is absent is said once and not at every look; the own binderfs is no path."""
    caplog.set_level(logging.INFO)
    make(dev, 1)
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    policy = Policy(
        shared_mounts=(SharedPath(OWN_BINDERFS, "/dev/binderfs"), SharedPath(str(a), "/a")),
        shared_devices=(SharedPath(str(b), "/dev/b"),),
    )
    made = backend(dev, policy=policy)
    looked(made)
    looked(made)
    assert shared_lines(caplog) == [str(b)]
    answer = made.allocate(["aosp_binder1"])
    assert answer.mounts == [Mount(host_path=str(a), container_path="/a", read_only=True)]
    assert [device.container_path for device in answer.devices] == ["/dev/aosp_binder1"]
    assert shared_lines(caplog) == []
    b.touch()
    looked(made)
    assert shared_lines(caplog) == []
    assert made.allocate(["aosp_binder1"]).devices[1] == DeviceNode(
        host_path=str(b), container_path="/dev/b", permissions="rw"
    )
    a.rmdir()
    b.unlink()
    looked(made)
    assert shared_lines(caplog) == [str(a), str(b)]


def test_where_all_shared_paths_exist_nothing_is_said(dev: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Or where there are none."""
    caplog.set_level(logging.INFO)
    looked(backend(dev, policy=Policy(shared_mounts=(SharedPath(str(dev), "/a"),), shared_devices=())))
    looked(backend(dev))
    assert caplog.records == []


def test_a_name_that_can_not_be_a_device_is_warned_of_once(dev: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the reason, in a form that can be printed; again where it comes back."""
    make(dev, 1)
    odd = [dev / "aosp_binder,2", dev / "aosp_binder\n3"]
    for path in odd:
        path.touch()
    made = backend(dev)
    for _ in range(2):
        assert looked(made) == {"aosp_binder1": ""}
    assert [(record.levelname, vars(record)["file"]) for record in caplog.records] == [
        ("WARNING", r"'aosp_binder\n3'"),
        ("WARNING", "'aosp_binder,2'"),
    ]
    assert "the name contains a comma" in caplog.records[1].getMessage()
    caplog.clear()
    odd[0].unlink()
    looked(made)
    assert caplog.records == []
    odd[0].touch()
    looked(made)
    assert [vars(record)["file"] for record in caplog.records] == ["'aosp_binder,2'"]


def test_the_host_s_files_are_seen_under_its_root_and_reported_without_it(tmp_path: Path) -> None:
    """In a container: links are followed under the root, what is watched is below it, what is told is not."""
    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    (root / "run" / "binders").mkdir(parents=True)
    (root / "run" / "binders" / "n1").touch()
    (root / "dev" / "aosp_binder1").symlink_to("/run/binders/n1")
    (root / "shared").touch()
    policy = Policy(shared_mounts=(SharedPath("/run", "/in"),), shared_devices=(SharedPath("/shared", "/dev/shared"),))
    made = backend("/dev", host=Host(str(root)), policy=policy)
    assert made.directories() == {f"{root}/dev"}
    assert looked(made) == {"aosp_binder1": ""}
    assert made.directories() == {f"{root}/dev", f"{root}/run/binders"}
    answer = made.allocate(["aosp_binder1"])
    assert [(device.host_path, device.container_path) for device in answer.devices] == [
        ("/dev/aosp_binder1", "/dev/aosp_binder1"),
        ("/shared", "/dev/shared"),
    ]
    assert [mount.host_path for mount in answer.mounts] == ["/run"]


def test_a_device_directory_that_is_a_link_is_watched_where_it_leads_and_where_it_stands(
    dev: Path, tmp_path: Path
) -> None:
    """Paths are reported as the operator wrote them."""
    make(dev, 1)
    (tmp_path / "link").symlink_to(dev)
    made = backend(tmp_path / "link")
    assert looked(made) == {"aosp_binder1": ""}
    assert made.directories() == {str(dev), str(tmp_path)}
    assert made.allocate(["aosp_binder1"]).devices[0].host_path == f"{tmp_path}/link/aosp_binder1"


@pytest.mark.parametrize("end", ["/", "/.", "//"])
def test_a_device_directory_may_end_with_a_slash(dev: Path, end: str) -> None:
    """The paths that the kubelet is told have none too many."""
    make(dev, 1)
    made = backend(f"{dev}{end}")
    assert made.directories() == {str(dev)}
    looked(made)
    assert made.allocate(["aosp_binder1"]).devices[0].host_path == f"{dev}/aosp_binder1"


def test_an_allocation_reads_nothing_of_the_driver(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs to binder is taken from the last look: each look asks once, however many nodes there are."""
    asked: list[Host] = []

    def driver(host: Host) -> Driver:
        asked.append(host)
        return Driver()

    monkeypatch.setattr(Host, "driver", driver)
    make(dev, 1, 2, 3)
    made = backend(dev)
    looked(made)
    made.allocate(["aosp_binder1", "aosp_binder2"])
    assert len(asked) == 1
    looked(made)
    assert len(asked) == 2


@needs_root
def test_a_binderfs_mounted_anew_on_the_same_number_is_another_one(
    dev: Path, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its binder-control is younger: the nodes are replaced, between two looks as well, until the wait is over."""
    nodes = tmp_path / "binderfs"
    nodes.mkdir()
    make_chars(nodes, "n1")
    (dev / "aosp_binder1").symlink_to(nodes / "n1")
    claim(monkeypatch, nodes)
    made = backend(dev, clock, verify=Verify.BINDER)
    assert looked(made) == {"aosp_binder1": ""}
    os.utime(nodes / "binder-control", ns=(5, 5))
    with pytest.raises(UnhealthyDeviceError, match="replaced"):
        made.allocate(["aosp_binder1"])
    clock.now = 1.0
    assert looked(made) == {"aosp_binder1": "replaced"}
    clock.now = 1.0 + FORGET
    assert looked(made) == {"aosp_binder1": ""}


def test_neighbours_are_preferred(dev: Path) -> None:
    """Among the nodes as of the last look, in natural order."""
    make(dev, 1, 2, 8, 9, 10)
    made = backend(dev)
    looked(made)
    free = [f"aosp_binder{number}" for number in (10, 9, 8, 1)]
    assert made.prefer(free, [], 3) == ["aosp_binder8", "aosp_binder9", "aosp_binder10"]
    assert made.prefer(free, ["aosp_binder10"], 2) == ["aosp_binder10", "aosp_binder1"]


def test_there_is_nothing_to_prepare_and_nothing_to_close(dev: Path) -> None:
    """Both may be called at any time."""
    made: Backend = backend(dev)
    made.pre_start(["aosp_binder1"])
    made.close()


class Probe:
    """Stands in for the driver behind a node, and notes what was opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: int | Exception = 8
        self.paths: list[str] = []
        monkeypatch.setattr(binderfs, "binder_version", self.version)

    def version(self, path: str) -> int:
        """Answer as ``binder_version`` does."""
        self.paths.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    return Probe(monkeypatch)


@pytest.fixture
def probed(probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BinderBackend:
    """Return a backend that probes a host with one node, behind a link under a root."""
    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    make_chars(root, "n1")
    (root / "dev" / "aosp_binder1").symlink_to("/n1")
    claim(monkeypatch, root)
    return backend("/dev", host=Host(str(root)), verify=Verify.PROBE)


@needs_root
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (8, ""),
        (7, "probe-failed"),
        (9, "probe-failed"),
        (BinderMissingError("no driver"), "probe-failed"),
        (BinderfsError("not a node"), "probe-failed"),
        (OSError("gone"), "probe-failed"),
        (NotPermittedError("cgroup"), ""),
    ],
)
def test_the_probe_decides_by_the_driver_s_answer(
    probe: Probe, probed: BinderBackend, tmp_path: Path, answer: int | Exception, reason: str
) -> None:
    """The node is opened where its link leads under the root; what may not be opened can't be judged."""
    probe.answer = answer
    assert looked(probed) == {"aosp_binder1": reason}
    assert probe.paths == [f"{tmp_path}/host/n1"]


@needs_root
def test_that_nodes_may_not_be_opened_is_warned_of_once(
    probe: Probe, probed: BinderBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """And not for each of ten thousand nodes at each look."""
    probe.answer = NotPermittedError("the device cgroup forbids it")
    for _ in range(3):
        assert looked(probed) == {"aosp_binder1": ""}
    (warning,) = caplog.records
    assert "--verify binder" in warning.getMessage()
    assert vars(warning)["error"] == "the device cgroup forbids it"


@needs_root
def test_an_allocation_does_not_probe(probe: Probe, probed: BinderBackend) -> None:
    """The kubelet waits for it in the loop that starts its pods."""
    looked(probed)
    assert len(probe.paths) == 1
    probed.allocate(["aosp_binder1"])
    assert len(probe.paths) == 1


def test_other_levels_do_not_probe(dev: Path, probe: Probe) -> None:
    """A node is opened only where the operator asked for it."""
    make(dev, 1)
    looked(backend(dev))
    assert probe.paths == []


def test_the_clock_is_the_machine_s_unless_another_is_given(dev: Path) -> None:
    """One that no change of the date can turn back."""
    make(dev, 1)
    settings = Settings(
        resource_name="aosp.io/binder",
        directory=str(dev),
        prefix="aosp_binder",
        verify=Verify.FILE,
        missing_device_ttl=0.0,
    )
    made = BinderBackend(Host(), settings)
    looked(made)
    vanish(dev)
    assert looked(made) == {"aosp_binder1": "missing"}
    assert looked(made) == {}
