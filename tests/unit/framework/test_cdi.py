"""CDI: names of devices, the content of a spec, and its file."""

import contextlib
import os
import random
import re
import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.framework.backend import ContainerEdits, DeviceNode, Mount
from aosp_plugin.framework.cdi import (
    CdiDevice,
    SpecFile,
    annotation,
    cdi_name,
    kind_problem,
    qualified_name,
    spec_of,
)
from aosp_plugin.framework.errors import CdiError

RESOURCE = "example.com/gpu"
FILE = "example.com_gpu.json"
TEMPORARY = re.compile(r"\.example\.com_gpu\.json\.[a-z0-9_]{8}\.tmp")
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def device(number: int, *mounts: Mount, **environment: str) -> CdiDevice:
    """Return a device with one device node."""
    node = DeviceNode(f"/dev/host{number}", f"/dev/gpu{number}", "rw")
    return CdiDevice(f"gpu{number}", ContainerEdits([node], mounts, environment))


def node_edit(number: int) -> dict[str, str]:
    """Return the entry of that device node in a spec."""
    return {"path": f"/dev/gpu{number}", "hostPath": f"/dev/host{number}", "permissions": "rw"}


def test_invalid_kind_is_rejected_with_the_invalid_part() -> None:
    """Single letters are invalid because they crash libraries that are in use."""
    for name in ("aosp.io/binder", "ab/cd", "AB.c/D-e1", "a_b/c.d-e"):
        assert kind_problem(name) is None
    for name, what in (
        ("4chan.org/gpu", "vendor '4chan.org'"),
        ("example.com/g/pu-", "class 'g/pu-'"),
        ("example.com/gpu\n", r"class 'gpu\n'"),
        ("example.com/gpü", "class 'gpü'"),
        ("example.com/g", "class 'g'"),
    ):
        assert (kind_problem(name) or "").startswith(f"its {what} must ")


def test_an_id_that_is_no_valid_name_is_escaped() -> None:
    """An ID that looks escaped is escaped as well, so that every name is unique."""
    for name in ("0", "GPU-1_2.3:4", "0::1", "x", "X:1"):
        assert cdi_name(name) == name
    escaped = {"a@1": "x:a:401", "_a": "x::5fa", ".": "x::2e", "ü": "x::c3:bc", "x:a:401": "x:x:3aa:3a401"}
    for device_id, name in escaped.items():
        assert cdi_name(device_id) == name
    rng = random.Random(1)  # noqa: S311 - no secret
    ids = {"".join(rng.choices("xa4:-_@ü0", k=rng.randint(1, 6))) for _ in range(2_000)}
    names = {cdi_name(device_id) for device_id in ids}
    assert len(names) == len(ids)
    assert all(map(NAME.fullmatch, names))


def test_annotation_lists_the_devices_under_a_key_of_its_own() -> None:
    """The key depends on resource and devices. It has at most 63 characters after the prefix."""
    key, value = annotation(RESOURCE, ["example.com/gpu=gpu0", "example.com/gpu=gpu1"])
    assert value == "example.com/gpu=gpu0,example.com/gpu=gpu1"
    assert re.fullmatch(r"cdi\.k8s\.io/example\.com\.gpu_[0-9a-f]{16}", key)
    assert annotation(RESOURCE, value.split(",")) == (key, value)
    long = [f"{'a' * 60}.b/{'c' * 60}{end}" for end in "de"]
    others = [(RESOURCE, ["a/b=c"]), ("ab.cd/e", ["a/b=c"]), *((name, ["a/b=c"]) for name in long)]
    keys = {annotation(*other)[0].removeprefix("cdi.k8s.io/") for other in others}
    assert len({key, *keys}) == 5
    assert max(map(len, keys)) == 63


def test_spec_has_nodes_mounts_and_variables_of_a_device() -> None:
    """Names are escaped. A runtime would grant all permissions if they were missing."""
    mounts = [Mount("/host/a", "/a", read_only=True), Mount("/dev/host0", "/dev/gpu0", read_only=False)]
    spec = spec_of(RESOURCE, [device(0, *mounts, B="2=2", A="1")._replace(id="a+")])
    (in_spec,) = spec.pop("devices")
    assert spec == {"cdiVersion": "0.5.0", "kind": RESOURCE, "containerEdits": {}}
    assert f"{RESOURCE}={in_spec['name']}" == qualified_name(RESOURCE, "a+") == "example.com/gpu=x:a:2b"
    assert in_spec["containerEdits"]["deviceNodes"] == [node_edit(0)]
    assert in_spec["containerEdits"]["env"] == ["A=1", "B=2=2"]
    bind = {"type": "bind", "options": ["rbind", "rprivate", "ro"]}
    assert in_spec["containerEdits"]["mounts"] == [
        {"hostPath": "/host/a", "containerPath": "/a", **bind},
        {"hostPath": "/dev/host0", "containerPath": "/dev/gpu0", **bind, "options": ["rbind", "rprivate", "rw"]},
    ]


def test_common_edits_are_written_once() -> None:
    shared = [Mount("/z", "/z", read_only=True), Mount("/b", "/b", read_only=True)]
    devices = [device(0, *shared, PATH="/x", N="0"), device(1, *reversed(shared), PATH="/x", N="1")]
    ashmem = DeviceNode("/dev/ashmem", "/dev/ashmem", "rw")
    edits = [device.edits._replace(devices=[*device.edits.devices, ashmem]) for device in devices]
    spec = spec_of(RESOURCE, [CdiDevice(f"gpu{number}", edits[number]) for number in range(2)])
    common = spec["containerEdits"]
    assert common["deviceNodes"] == [{"path": "/dev/ashmem", "hostPath": "/dev/ashmem", "permissions": "rw"}]
    assert [mount["hostPath"] for mount in common["mounts"]] == ["/z", "/b"]
    assert common["env"] == ["PATH=/x"]
    assert {each["name"]: each["containerEdits"] for each in spec["devices"]} == {
        "gpu0": {"deviceNodes": [node_edit(0)], "env": ["N=0"]},
        "gpu1": {"deviceNodes": [node_edit(1)], "env": ["N=1"]},
    }


def test_first_write_creates_directory_and_file(tmp_path: Path) -> None:
    """Without devices, none are created."""
    file = SpecFile(str(tmp_path / "cdi"), RESOURCE)
    assert not file.write(None)
    assert os.listdir(tmp_path) == []
    assert file.write(b"one")
    assert file.path == str(tmp_path / "cdi" / FILE)
    assert Path(file.path).read_bytes() == b"one"
    assert os.listdir(tmp_path / "cdi") == [FILE]


def test_file_is_written_if_its_content_or_a_device_number_changed(tmp_path: Path) -> None:
    """Runtimes cache the first device numbers that they read until the file changes.

    The file of a predecessor is written again, because devices may have been replaced while no plugin was running.
    """
    path, file = tmp_path / FILE, SpecFile(str(tmp_path), RESOURCE)
    path.write_bytes(b"one")
    for content, numbers, expected in (
        (b"one", [1], True),
        (b"one", [1], False),
        (b"two", [1], True),
        (b"two", [2], True),
        (b"two", [2], False),
        (b"two", [], True),
        (None, [], True),
        (None, [], False),
        (b"one", [], True),
    ):
        before = os.stat(path).st_ino if path.exists() else None
        assert file.write(content, numbers) is expected
        assert (path.read_bytes() if path.exists() else None) == content
        assert expected or content is None or os.stat(path).st_ino == before


def test_removed_or_replaced_file_is_written_again(tmp_path: Path) -> None:
    """Also if its directory was removed. A link in its place is replaced and not followed.

    Another plugin runs in a rolling update, and the one that remains has the last word.
    """
    directory, victim = tmp_path / "cdi", tmp_path / "victim"
    path, file = directory / FILE, SpecFile(str(directory), RESOURCE)
    victim.write_bytes(b"mine")
    file.write(b"one")

    def link_to(target: Path | str) -> None:
        path.unlink()
        path.symlink_to(target)

    damages: list[Callable[[], object]] = [
        path.unlink,
        lambda: shutil.rmtree(directory),
        lambda: SpecFile(str(directory), RESOURCE).write(b"one"),
        lambda: link_to(victim),
        lambda: link_to("nowhere"),
    ]
    for damage in damages:
        damage()
        assert [file.write(b"one"), file.write(b"one")] == [True, False]
        assert (path.read_bytes(), path.is_symlink()) == (b"one", False)
    path.unlink()
    path.symlink_to(victim)
    assert file.write(None)
    assert (victim.read_bytes(), os.listdir(directory)) == (b"mine", [])


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_file_is_not_writable_for_others_under_any_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    """Nor are its temporary file and its directory. A container runtime applies the spec as root."""
    modes: list[int] = []
    os_open: Callable[..., int] = os.open

    def record(*arguments: Any, **keywords: Any) -> int:
        descriptor = os_open(*arguments, **keywords)
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", record)
    before = os.umask(umask)
    try:
        SpecFile(str(tmp_path / "cdi"), RESOURCE).write(b"{}")
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert [stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "cdi", tmp_path / "cdi" / FILE)] == [
        0o755,
        0o644,
    ]


def test_file_is_complete_and_synced_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []
    rename, fsync = os.rename, os.fsync

    def watched_fsync(descriptor: int) -> None:
        steps.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    def watched_rename(source: str, target: str) -> None:
        assert TEMPORARY.fullmatch(os.path.relpath(source, tmp_path))
        steps.extend((Path(source).read_bytes(), Path(target).read_bytes()))
        rename(source, target)

    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"one")
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    file.write(b"two")
    assert steps == [3, b"two", b"one"]


def test_write_removes_temporary_files_of_a_killed_process(tmp_path: Path) -> None:
    """One that is newer than a minute stays: another process may be writing it."""
    left = ".example.com_gpu.json.abcd_123.tmp"
    others = [FILE, left + ".json", "a" + left, left.replace("gpu", "other"), left.replace(".com", "Xcom"), left[1:]]
    for name in (left, *others):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"{}")
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    (tmp_path / left).touch()
    file.write(b"{ }")
    assert (tmp_path / left).exists()


@contextlib.contextmanager
def disk_with(size: int) -> Iterator[None]:
    """Limit files to ``size`` bytes; the kernel then fails writes as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_keeps_the_old_file_complete(tmp_path: Path) -> None:
    """A check of what could be written leaves nothing either."""
    file = SpecFile(str(tmp_path / "cdi"), RESOURCE)
    old, new = b"1" * 3000, b"2" * 30000
    file.check(old)
    assert os.listdir(tmp_path / "cdi") == []
    file.write(old)
    for update in (file.write, file.check):
        expected = f"^cannot update the CDI spec {file.path}: File too large; .*and have free space$"
        with disk_with(4000), pytest.raises(CdiError, match=expected):
            update(new)
        assert Path(file.path).read_bytes() == old
        assert os.listdir(tmp_path / "cdi") == [FILE]
    assert file.write(new)


@pytest.mark.parametrize(
    ("directory", "cause"),
    [("run", "Is a directory"), ("file", "Not a directory"), ("run/none/cdi", "No such file or directory")],
)
def test_place_that_is_not_usable_is_an_error(tmp_path: Path, directory: str, cause: str) -> None:
    """A parent that is missing is not created: the directory is probably not mounted into the container."""
    (tmp_path / "run" / FILE).mkdir(parents=True)
    (tmp_path / "file").touch()
    path = tmp_path / directory / FILE
    with pytest.raises(
        CdiError, match=rf"cannot update the CDI spec {path}: {cause}; .* \(mounted into the container\)"
    ):
        SpecFile(str(path.parent), RESOURCE).write(b"one")
    assert (sorted(os.listdir(tmp_path)), os.listdir(tmp_path / "run")) == (["file", "run"], [FILE])
