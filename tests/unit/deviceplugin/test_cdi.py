"""CDI: names of devices, the content of a spec, and its file."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.errors import CdiError
from aosp_plugin.framework.cdi.spec import (
    CdiDevice,
    annotation,
    device_name,
    encode,
    kind_problem,
    qualified_name,
    spec_of,
)
from aosp_plugin.framework.cdi.spec_file import SpecFile
from aosp_plugin.framework.edits import ContainerEdits, DeviceNode, Mount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOT = os.geteuid() == 0
OTHER = 65534
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


def edits_by_name(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the edits of every device of a spec."""
    return {listed["name"]: listed["containerEdits"] for listed in spec["devices"]}


@pytest.mark.parametrize(
    "name", ["aosp.io/binder", "a-b.c/d_e", "ab/cd", "a1/b2", "AB.c/D-e", "example.com/gpu.shared", "a_b/c.d-e"]
)
def test_resource_name_with_a_valid_vendor_and_class_is_a_kind(name: str) -> None:
    assert kind_problem(name) is None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("4chan.org/gpu", "vendor '4chan.org'"),
        ("example.com/4gpu", "class '4gpu'"),
        ("-a.com/gpu", "vendor '-a.com'"),
        ("example.com/gpu-", "class 'gpu-'"),
        ("example.com/gpu_", "class 'gpu_'"),
        ("example.com/g/pu", "class 'g/pu'"),
        ("exa mple.com/gpu", "vendor 'exa mple.com'"),
        ("example.com/gpu\n", r"class 'gpu\n'"),
        ("example.com/gpü", "class 'gpü'"),
        ("example.com", "class ''"),
        ("/gpu", "vendor ''"),
        ("", "vendor ''"),
        ("e/gpu", "vendor 'e'"),
        ("example.com/g", "class 'g'"),
    ],
)
def test_invalid_kind_is_rejected_with_the_invalid_part(name: str, what: str) -> None:
    """Single letters are invalid because they crash libraries that are in use."""
    problem = kind_problem(name)
    assert problem is not None
    assert problem.startswith(f"its {what} must ")


@pytest.mark.parametrize("name", ["gpu0", "0", "a", "GPU-1_2.3:4", "a--b", "0::1", "xx:1", "x", "X:1", "aosp_binder17"])
def test_id_that_is_a_valid_name_is_the_name(name: str) -> None:
    assert device_name(name) == name


@pytest.mark.parametrize(
    ("device_id", "name"),
    [
        ("a@1", "x:a:401"),
        ("a+b", "x:a:2bb"),
        ("_a", "x::5fa"),
        ("a-", "x:a:2d"),
        ("a:", "x:a:3a"),
        (".", "x::2e"),
        ("a/b", "x:a:2fb"),
        ("ü", "x::c3:bc"),
        ("a\n", "x:a:0a"),
        ("x:a:401", "x:x:3aa:3a401"),
        ("x:y", "x:x:3ay"),
    ],
)
def test_other_ids_are_escaped(device_id: str, name: str) -> None:
    """An ID that looks escaped is escaped as well, so that every name is unique."""
    assert device_name(device_id) == name
    assert NAME.fullmatch(name)


def test_names_are_unique() -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    ids = {"".join(rng.choices("xa4:-_@ü0", k=rng.randint(1, 6))) for _ in range(10_000)}
    for device_id in ids:
        name = device_name(device_id)
        assert NAME.fullmatch(name)
        escaped = name.removeprefix("x:").replace(":", "\\x").encode()
        decoded = escaped.decode("unicode_escape").encode("latin-1").decode() if name.startswith("x:") else name
        assert decoded == device_id
    assert len({device_name(device_id) for device_id in ids}) == len(ids)


def test_qualified_name_is_resource_and_device_name() -> None:
    assert qualified_name("aosp.io/binder", "aosp_binder3") == "aosp.io/binder=aosp_binder3"
    assert qualified_name("aosp.io/binder", "a+") == "aosp.io/binder=x:a:2b"


def test_annotation_lists_the_devices_of_a_container() -> None:
    key, value = annotation(RESOURCE, ["example.com/gpu=gpu0", "example.com/gpu=gpu1"])
    assert value == "example.com/gpu=gpu0,example.com/gpu=gpu1"
    assert re.fullmatch(r"cdi\.k8s\.io/example\.com\.gpu_[0-9a-f]{16}", key)


def test_annotation_key_depends_on_resource_and_devices() -> None:
    names = ["a/b=c"]
    assert annotation("ab/cd", names) == annotation("ab/cd", list(names))
    keys = {annotation(*one)[0] for one in (("ab/cd", names), ("ab/cd", ["a/b=d"]), ("ab.cd/e", names))}
    assert len(keys) == 3


def test_annotation_key_has_at_most_63_characters_after_the_prefix() -> None:
    long = [f"{'a' * 60}.b/{'c' * 60}{end}" for end in "de"]
    keys = [annotation(name, ["a/b=c"])[0].removeprefix("cdi.k8s.io/") for name in long]
    assert [len(key) for key in keys] == [63, 63]
    assert keys[0] != keys[1]
    assert len(annotation("a.b/" + "c" * 42, [])[0]) == len("cdi.k8s.io/") + 63
    assert "c" * 42 + "_" in annotation("a.b/" + "c" * 42, [])[0]


def test_spec_has_nodes_mounts_and_variables_of_a_device() -> None:
    mounts = [Mount("/host/a", "/a", read_only=True), Mount("/dev/host0", "/dev/gpu0", read_only=False)]
    assert spec_of(RESOURCE, [device(0, *mounts, B="2=2", A="1")]) == {
        "cdiVersion": "0.5.0",
        "kind": RESOURCE,
        "containerEdits": {},
        "devices": [
            {
                "name": "gpu0",
                "containerEdits": {
                    "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/host0", "permissions": "rw"}],
                    "mounts": [
                        {
                            "hostPath": "/host/a",
                            "containerPath": "/a",
                            "type": "bind",
                            "options": ["rbind", "rprivate", "ro"],
                        },
                        {
                            "hostPath": "/dev/host0",
                            "containerPath": "/dev/gpu0",
                            "type": "bind",
                            "options": ["rbind", "rprivate", "rw"],
                        },
                    ],
                    "env": ["A=1", "B=2=2"],
                },
            }
        ],
    }


def test_permissions_and_both_paths_of_a_node_are_always_written() -> None:
    """A runtime would grant all permissions if they were missing."""
    spec = spec_of(RESOURCE, [CdiDevice("a", ContainerEdits([DeviceNode("/dev/a", "/dev/a", "r")]))])
    assert spec["devices"][0]["containerEdits"] == {
        "deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/a", "permissions": "r"}]
    }


def test_class_with_a_dot_requires_a_later_version() -> None:
    assert spec_of("a.b/gpu", [device(0)])["cdiVersion"] == "0.5.0"
    assert spec_of("a.b/gpu.shared", [device(0)])["cdiVersion"] == "0.6.0"


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
    assert edits_by_name(spec) == {
        "gpu0": {"deviceNodes": [node_edit(0)], "env": ["N=0"]},
        "gpu1": {"deviceNodes": [node_edit(1)], "env": ["N=1"]},
    }


def test_edits_of_some_devices_stay_with_these_devices() -> None:
    same, differs = Mount("/a", "/a", read_only=True), Mount("/a", "/a", read_only=False)
    spec = spec_of(RESOURCE, [device(0, same), device(1), device(2, differs), device(3, same)])
    assert spec["containerEdits"] == {}
    options = {
        name: [one["options"][2] for one in edits.get("mounts", [])] for name, edits in edits_by_name(spec).items()
    }
    assert options == {"gpu0": ["ro"], "gpu1": [], "gpu2": ["rw"], "gpu3": ["ro"]}


def test_every_device_keeps_edits_of_its_own() -> None:
    """CDI libraries reject a device without edits."""
    same = Mount("/a", "/a", read_only=True)
    spec = spec_of(RESOURCE, [device(0, same), device(1, same), CdiDevice("none", ContainerEdits(mounts=[same]))])
    assert spec["containerEdits"] == {}
    assert all(len(edits["mounts"]) == 1 for edits in edits_by_name(spec).values())
    assert edits_by_name(spec)["gpu1"]["deviceNodes"] == [node_edit(1)]


def test_devices_of_a_spec_have_escaped_names() -> None:
    spec = spec_of(RESOURCE, [device(0)._replace(id="a+")])
    assert f"{spec['kind']}={spec['devices'][0]['name']}" == qualified_name(RESOURCE, "a+")


def test_content_does_not_depend_on_the_order_of_devices_and_variables() -> None:
    devices = [device(number, A="1", B="2") for number in range(20)]
    shuffled = [device(number, B="2", A="1") for number in range(20)]
    random.Random(2).shuffle(shuffled)  # noqa: S311 - no secret
    assert encode(spec_of(RESOURCE, devices)) == encode(spec_of(RESOURCE, shuffled))


def test_content_is_json_that_is_also_yaml() -> None:
    """JSON escapes of characters beyond the first 65,536 are not valid in YAML."""
    edits = ContainerEdits([DeviceNode("/dev/🤖", "/dev/ü", "rw")], environment={"A": 'a"\\b\n'})
    spec = spec_of(RESOURCE, [CdiDevice("a", edits)])
    text = encode(spec)
    assert json.loads(text) == spec
    assert "/dev/🤖".encode() in text
    assert b"\\u" not in text


def test_first_write_creates_directory_and_file_readable_for_all(tmp_path: Path) -> None:
    directory = tmp_path / "cdi"
    file = SpecFile(str(directory), RESOURCE)
    before = os.umask(0o077)
    try:
        assert file.write(b"one")
    finally:
        os.umask(before)
    assert file.path == str(directory / FILE)
    assert (directory / FILE).read_bytes() == b"one"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert stat.S_IMODE((directory / FILE).stat().st_mode) == 0o644
    assert os.listdir(directory) == [FILE]


def test_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    SpecFile(str(tmp_path), RESOURCE).write(b"one")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


def test_every_resource_has_its_own_file(tmp_path: Path) -> None:
    names = ["a-b/c", "a/b-c", "a.b/c", "a/b.c", "a/b_c"]
    assert len({SpecFile(str(tmp_path), name).path for name in names}) == len(names)


def test_unchanged_content_is_not_written_again(tmp_path: Path) -> None:
    file = SpecFile(str(tmp_path), RESOURCE)
    wrote, times = [], []
    for content in (b"one", b"one", b"two", b"one"):
        wrote.append(file.write(content, [1, 2]))
        times.append((tmp_path / FILE).stat().st_mtime_ns)
        assert (tmp_path / FILE).read_bytes() == content
    assert wrote == [True, False, True, True]
    assert times[0] == times[1]


def test_changed_device_number_causes_a_write_of_unchanged_content(tmp_path: Path) -> None:
    """Runtimes cache the first device numbers that they read until the file changes."""
    file = SpecFile(str(tmp_path), RESOURCE)
    assert [file.write(b"one", numbers) for numbers in ([1, 2], (1, 2), [1, 3], [1, 3], [])] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_rewrite_writes_the_same_content_again(tmp_path: Path) -> None:
    """The new device numbers are unknown at that moment, and a runtime must read them before the container starts."""
    file = SpecFile(str(tmp_path), RESOURCE)
    file.rewrite()
    assert not os.listdir(tmp_path), "there is nothing to write before the first content"
    file.write(b"{}", [1])
    before = os.stat(tmp_path / FILE)
    file.rewrite()
    after = os.stat(tmp_path / FILE)
    assert (tmp_path / FILE).read_bytes() == b"{}"
    assert before.st_ino != after.st_ino
    assert not file.write(b"{}", [1]), "nothing has changed"


def test_first_write_replaces_an_equal_file(tmp_path: Path) -> None:
    """Devices may have been replaced while no plugin was running."""
    (tmp_path / FILE).write_bytes(b"one")
    before = (tmp_path / FILE).stat()
    assert SpecFile(str(tmp_path), RESOURCE).write(b"one")
    assert not os.path.samestat((tmp_path / FILE).stat(), before)


def test_removed_file_is_written_again(tmp_path: Path) -> None:
    directory = tmp_path / "cdi"
    file = SpecFile(str(directory), RESOURCE)
    file.write(b"one")
    (directory / FILE).unlink()
    assert file.write(b"one")
    (directory / FILE).unlink()
    (directory / FILE).symlink_to("nowhere")
    assert file.write(b"one")
    (directory / FILE).unlink()
    directory.rmdir()
    assert file.write(b"one")
    assert (directory / FILE).read_bytes() == b"one"


def test_no_devices_remove_the_file_also_of_a_predecessor(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"old")
    file = SpecFile(str(tmp_path), RESOURCE)
    assert [file.write(content) for content in (None, None, b"one", None, b"one")] == [True, False, True, True, True]
    assert (tmp_path / FILE).read_bytes() == b"one"


def test_no_devices_create_no_directory(tmp_path: Path) -> None:
    assert not SpecFile(str(tmp_path / "cdi"), RESOURCE).write(None)
    assert os.listdir(tmp_path) == []


def test_file_is_complete_and_synced_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[Any] = []
    rename, fsync = os.rename, os.fsync

    def watched_fsync(descriptor: int) -> None:
        happened.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    def watched_rename(source: str, target: str) -> None:
        happened.append((source, target))
        with open(source, "rb") as file:
            assert file.read() == b"two"
        with open(target, "rb") as file:
            assert file.read() == b"one"
        rename(source, target)

    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"one")
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    file.write(b"two")
    size, (source, target) = happened
    assert size == 3
    assert target == file.path
    assert os.path.dirname(source) == str(tmp_path)
    assert TEMPORARY.fullmatch(os.path.basename(source))


def test_link_in_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    directory, victim = tmp_path / "cdi", tmp_path / "victim"
    directory.mkdir()
    victim.write_bytes(b"mine")
    file = SpecFile(str(directory), RESOURCE)
    (directory / FILE).symlink_to(victim)
    assert file.write(b"one")
    assert not (directory / FILE).is_symlink()
    (directory / FILE).unlink()
    (directory / FILE).symlink_to(victim)
    assert file.write(None)
    assert victim.read_bytes() == b"mine"
    assert os.listdir(directory) == []


def test_close_removes_only_its_own_file(tmp_path: Path) -> None:
    other = SpecFile(str(tmp_path), "example.com/other")
    other.write(b"other")
    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"one")
    file.close()
    file.close()
    assert os.listdir(tmp_path) == ["example.com_other.json"]


def test_close_keeps_the_file_of_a_successor(tmp_path: Path) -> None:
    """In a rolling update the new plugin writes the same content before the old plugin ends."""
    old, new = SpecFile(str(tmp_path), RESOURCE), SpecFile(str(tmp_path), RESOURCE)
    old.write(b"one")
    before = (tmp_path / FILE).stat()
    new.write(b"one")
    after = (tmp_path / FILE).stat()
    assert not old.write(b"one")
    os.utime(tmp_path / FILE, ns=(before.st_atime_ns, before.st_mtime_ns))
    old.close()
    assert os.listdir(tmp_path) == [FILE]
    os.utime(tmp_path / FILE, ns=(after.st_atime_ns, after.st_mtime_ns))
    new.close()
    assert os.listdir(tmp_path) == []


def test_close_keeps_the_file_of_a_successor_with_a_reused_inode_number(tmp_path: Path) -> None:
    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"one")
    os.utime(tmp_path / FILE, ns=(1, 1))
    file.close()
    assert os.listdir(tmp_path) == [FILE]


def test_close_without_a_write_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"another's")
    SpecFile(str(tmp_path), RESOURCE).close()
    assert (tmp_path / FILE).exists()


def test_the_first_write_removes_temporary_files_of_a_killed_predecessor(tmp_path: Path) -> None:
    left = [".example.com_gpu.json.abcd_123.tmp", ".example.com_gpu.json.00000000.tmp"]
    others = [
        FILE,
        ".example.com_gpu.json.tmp",
        ".example.com_gpu.json.abcd_1234.tmp",
        ".example.com_gpu.json.abcd_123.tmp.json",
        ".example.com_other.json.abcd_123.tmp",
        ".exampleXcom_gpu.json.abcd_123.tmp",
        "example.com_gpu.json.abcd_123.tmp",
        "a.example.com_gpu.json.abcd_123.tmp",
    ]
    for name in (*left, *others):
        (tmp_path / name).touch()
    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"{}")
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    (tmp_path / left[0]).touch()
    file.write(b"{ }")
    assert (tmp_path / left[0]).exists(), "a successor may be writing it"


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
    file = SpecFile(str(tmp_path), RESOURCE)
    old, new = b"1" * 3000, b"2" * 30000
    file.write(old)
    with disk_with(4000), pytest.raises(CdiError) as raised:
        file.write(new)
    text = str(raised.value)
    assert text.startswith(f"cannot update the CDI spec {tmp_path / FILE}: File too large; ")
    assert text.endswith("and have free space")
    assert (tmp_path / FILE).read_bytes() == old
    assert os.listdir(tmp_path) == [FILE]
    assert file.write(new)
    file.close()
    assert os.listdir(tmp_path) == []


def test_close_after_a_failed_write_removes_the_file(tmp_path: Path) -> None:
    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"1")
    with disk_with(10), pytest.raises(CdiError):
        file.write(b"2" * 30000)
    file.close()
    assert os.listdir(tmp_path) == []


def test_directory_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    file = SpecFile(str(tmp_path), RESOURCE)
    for content in (b"one", None):
        with pytest.raises(CdiError, match=f"cannot update the CDI spec {tmp_path / FILE}: Is a directory"):
            file.write(content)
    assert os.listdir(tmp_path) == [FILE]


def test_missing_parent_directory_is_an_error(tmp_path: Path) -> None:
    """The parent belongs to the host: if it is missing, the directory is probably not mounted into the container."""
    file = SpecFile(str(tmp_path / "run" / "cdi"), RESOURCE)
    with pytest.raises(CdiError, match=r"No such file or directory; .* \(mounted into the container\)"):
        file.write(b"one")
    assert os.listdir(tmp_path) == []


def test_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    file = SpecFile(str(tmp_path / "cdi"), RESOURCE)
    for action in (lambda: file.write(b"one"), lambda: file.write(None), file.close):
        with pytest.raises(CdiError, match="Not a directory"):
            action()


def test_directory_that_is_not_writable_is_an_error(kubelet_dir: str) -> None:
    script = (
        "import os, sys\n"
        "from aosp_plugin.framework.cdi.spec_file import SpecFile\n"
        "from aosp_plugin.errors import CdiError\n"
        "if os.geteuid() == 0:\n"
        f"    os.setresgid({OTHER}, {OTHER}, {OTHER}); os.setresuid({OTHER}, {OTHER}, {OTHER})\n"
        "try:\n"
        "    SpecFile(sys.argv[1], 'example.com/gpu').write(b'one')\n"
        "except CdiError as error:\n"
        "    print(error)\n"
    )
    os.chmod(kubelet_dir, 0o555)
    output = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", script, kubelet_dir], check=True, capture_output=True, text=True
    ).stdout
    os.chmod(kubelet_dir, 0o700)
    uid = OTHER if ROOT else os.getuid()
    assert f"cannot update the CDI spec {kubelet_dir}/{FILE}: Permission denied; " in output
    assert f"writable for uid {uid}" in output
    assert os.listdir(kubelet_dir) == []
