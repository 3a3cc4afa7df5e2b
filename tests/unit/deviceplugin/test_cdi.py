"""CDI: which names there are, what a spec says, and when its file is written, kept and removed."""

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
    DIRECTORY,
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
NOBODY = 65534
RESOURCE = "example.com/gpu"
FILE = "example.com_gpu.json"
TEMPORARY = re.compile(r"\.example\.com_gpu\.json\.[a-z0-9_]{8}\.tmp")
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def device(number: int, *mounts: Mount, **environment: str) -> CdiDevice:
    """Return a device with a node of its own."""
    node = DeviceNode(f"/dev/host{number}", f"/dev/gpu{number}", "rw")
    return CdiDevice(f"gpu{number}", ContainerEdits([node], mounts, environment))


def node_edit(number: int) -> dict[str, str]:
    """Return what a spec says of the node of that device."""
    return {"path": f"/dev/gpu{number}", "hostPath": f"/dev/host{number}", "permissions": "rw"}


def edits_by_name(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the edits of every device of a spec."""
    return {listed["name"]: listed["containerEdits"] for listed in spec["devices"]}


@pytest.mark.parametrize(
    "name", ["aosp.io/binder", "a-b.c/d_e", "ab/cd", "a1/b2", "AB.c/D-e", "example.com/gpu.shared", "a_b/c.d-e"]
)
def test_a_vendor_and_a_class_are_a_kind(name: str) -> None:
    """Each begins with a letter, ends with a letter or a digit, and has more of these with '-', '_' and '.' between."""
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
def test_anything_else_is_no_kind_and_the_text_says_which_part_is_wrong(name: str, what: str) -> None:
    """One letter is among it: libraries in use crash on it."""
    problem = kind_problem(name)
    assert problem is not None
    assert problem.startswith(f"its {what} must ")


@pytest.mark.parametrize("name", ["gpu0", "0", "a", "GPU-1_2.3:4", "a--b", "0::1", "xx:1", "x", "X:1", "aosp_binder17"])
def test_an_id_that_can_be_a_name_is_the_name(name: str) -> None:
    """People type it."""
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
def test_any_other_id_is_escaped_and_so_is_one_that_looks_escaped(device_id: str, name: str) -> None:
    """So that no name stands for two devices."""
    assert device_name(device_id) == name
    assert NAME.fullmatch(name)


def test_every_name_leads_back_to_one_id() -> None:
    """Ten thousand IDs of few characters, so that some that look alike are among them."""
    rng = random.Random(1)  # noqa: S311 - no secret
    ids = {"".join(rng.choices("xa4:-_@ü0", k=rng.randint(1, 6))) for _ in range(10_000)}
    for device_id in ids:
        name = device_name(device_id)
        assert NAME.fullmatch(name)
        escaped = name.removeprefix("x:").replace(":", "\\x").encode()
        decoded = escaped.decode("unicode_escape").encode("latin-1").decode() if name.startswith("x:") else name
        assert decoded == device_id
    assert len({device_name(device_id) for device_id in ids}) == len(ids)


def test_a_qualified_name_is_the_resource_and_the_name_in_the_spec() -> None:
    """The ID is escaped where it has to be."""
    assert qualified_name("aosp.io/binder", "aosp_binder3") == "aosp.io/binder=aosp_binder3"
    assert qualified_name("aosp.io/binder", "a+") == "aosp.io/binder=x:a:2b"


def test_an_annotation_names_the_devices_of_a_container() -> None:
    """With commas between them, under a key that names the plugin."""
    key, value = annotation(RESOURCE, ["example.com/gpu=gpu0", "example.com/gpu=gpu1"])
    assert value == "example.com/gpu=gpu0,example.com/gpu=gpu1"
    assert re.fullmatch(r"cdi\.k8s\.io/example\.com\.gpu_[0-9a-f]{16}", key)


def test_an_annotation_s_key_is_the_same_for_the_same_devices_only() -> None:
    """A kubelet may ask twice for a container; another resource or other devices get a key of their own."""
    names = ["a/b=c"]
    assert annotation("ab/cd", names) == annotation("ab/cd", list(names))
    keys = {annotation(*one)[0] for one in (("ab/cd", names), ("ab/cd", ["a/b=d"]), ("ab.cd/e", names))}
    assert len(keys) == 3


def test_an_annotation_s_key_is_never_longer_than_allowed() -> None:
    """63 characters after the prefix; names that are cut at the same place keep keys of their own."""
    long = [f"{'a' * 60}.b/{'c' * 60}{end}" for end in "de"]
    keys = [annotation(name, ["a/b=c"])[0].removeprefix("cdi.k8s.io/") for name in long]
    assert [len(key) for key in keys] == [63, 63]
    assert keys[0] != keys[1]
    assert len(annotation("a.b/" + "c" * 42, [])[0]) == len("cdi.k8s.io/") + 63
    assert "c" * 42 + "_" in annotation("a.b/" + "c" * 42, [])[0]


def test_a_spec_says_what_a_container_gets_with_a_device() -> None:
    """Nodes, mounts and variables in the words of CDI: paths on both sides, permissions, options."""
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


def test_a_node_s_permissions_and_both_paths_are_always_written() -> None:
    """A missing permission would be all of them; equal paths are written twice."""
    spec = spec_of(RESOURCE, [CdiDevice("a", ContainerEdits([DeviceNode("/dev/a", "/dev/a", "r")]))])
    assert spec["devices"][0]["containerEdits"] == {
        "deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/a", "permissions": "r"}]
    }


def test_a_class_with_a_dot_needs_a_later_version() -> None:
    """Every other kind is for older runtimes as well, the vendor's dots notwithstanding."""
    assert spec_of("a.b/gpu", [device(0)])["cdiVersion"] == "0.5.0"
    assert spec_of("a.b/gpu.shared", [device(0)])["cdiVersion"] == "0.6.0"


def test_what_all_devices_have_in_common_stands_once() -> None:
    """Whether node, mount or variable, and in the order in which the first device has it."""
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


def test_what_only_some_devices_have_stays_with_them() -> None:
    """So does what differs in a single word."""
    same, differs = Mount("/a", "/a", read_only=True), Mount("/a", "/a", read_only=False)
    spec = spec_of(RESOURCE, [device(0, same), device(1), device(2, differs), device(3, same)])
    assert spec["containerEdits"] == {}
    options = {
        name: [one["options"][2] for one in edits.get("mounts", [])] for name, edits in edits_by_name(spec).items()
    }
    assert options == {"gpu0": ["ro"], "gpu1": [], "gpu2": ["rw"], "gpu3": ["ro"]}


def test_no_device_is_left_without_edits() -> None:
    """Where one has nothing but what all have, all keep everything: a library refuses an empty device."""
    same = Mount("/a", "/a", read_only=True)
    spec = spec_of(RESOURCE, [device(0, same), device(1, same), CdiDevice("none", ContainerEdits(mounts=[same]))])
    assert spec["containerEdits"] == {}
    assert all(len(edits["mounts"]) == 1 for edits in edits_by_name(spec).values())
    assert edits_by_name(spec)["gpu1"]["deviceNodes"] == [node_edit(1)]


def test_a_spec_s_devices_have_the_names_that_are_asked_for() -> None:
    """The ID is escaped in the same way."""
    spec = spec_of(RESOURCE, [device(0)._replace(id="a+")])
    assert f"{spec['kind']}={spec['devices'][0]['name']}" == qualified_name(RESOURCE, "a+")


def test_the_text_does_not_depend_on_the_order_in_which_devices_and_variables_come() -> None:
    """So that nothing is written where nothing changed."""
    devices = [device(number, A="1", B="2") for number in range(20)]
    shuffled = [device(number, B="2", A="1") for number in range(20)]
    random.Random(2).shuffle(shuffled)  # noqa: S311 - no secret
    assert encode(spec_of(RESOURCE, devices)) == encode(spec_of(RESOURCE, shuffled))


def test_the_text_is_json_without_escapes_that_yaml_does_not_know() -> None:
    """A character outside the first 65,536 would become two escapes, which libraries that read YAML refuse."""
    edits = ContainerEdits([DeviceNode("/dev/🤖", "/dev/ü", "rw")], environment={"A": 'a"\\b\n'})
    spec = spec_of(RESOURCE, [CdiDevice("a", edits)])
    text = encode(spec)
    assert json.loads(text) == spec
    assert "/dev/🤖".encode() in text
    assert b"\\u" not in text


def test_specs_are_in_the_directory_that_runtimes_watch() -> None:
    """The one for files that programs write."""
    assert DIRECTORY == "/var/run/cdi"


def test_the_first_write_makes_the_directory_and_the_file(tmp_path: Path) -> None:
    """Whatever the umask, all may read them: Podman runs without root as well."""
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


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """It belongs to others too."""
    tmp_path.chmod(0o750)
    SpecFile(str(tmp_path), RESOURCE).write(b"one")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


def test_every_resource_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Even those whose names differ only in where the slash stands."""
    names = ["a-b/c", "a/b-c", "a.b/c", "a/b.c", "a/b_c"]
    assert len({SpecFile(str(tmp_path), name).path for name in names}) == len(names)


def test_an_unchanged_content_is_not_written_again(tmp_path: Path) -> None:
    """A changed one is, and so is one that was there before."""
    file = SpecFile(str(tmp_path), RESOURCE)
    wrote, times = [], []
    for content in (b"one", b"one", b"two", b"one"):
        wrote.append(file.write(content, [1, 2]))
        times.append((tmp_path / FILE).stat().st_mtime_ns)
        assert (tmp_path / FILE).read_bytes() == content
    assert wrote == [True, False, True, True]
    assert times[0] == times[1]


def test_a_changed_device_number_has_an_unchanged_content_written_again(tmp_path: Path) -> None:
    """Runtimes keep the numbers that they found first until the file changes."""
    file = SpecFile(str(tmp_path), RESOURCE)
    assert [file.write(b"one", numbers) for numbers in ([1, 2], (1, 2), [1, 3], [1, 3], [])] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_the_same_content_is_written_again_when_a_node_was_made_anew(tmp_path: Path) -> None:
    """The numbers are not known yet at that moment, and a runtime has to look again before the container starts."""
    file = SpecFile(str(tmp_path), RESOURCE)
    file.rewrite()
    assert not os.listdir(tmp_path), "there is nothing to write before the first content"
    file.write(b"{}", [1])
    before = os.stat(tmp_path / FILE)
    file.rewrite()
    after = os.stat(tmp_path / FILE)
    assert (tmp_path / FILE).read_bytes() == b"{}"
    assert before.st_ino != after.st_ino
    assert not file.write(b"{}", [1]), "nothing has changed for the next look"


def test_a_file_that_is_there_at_the_start_is_written_again(tmp_path: Path) -> None:
    """Nobody can tell whether nodes were replaced while no plugin ran."""
    (tmp_path / FILE).write_bytes(b"one")
    before = (tmp_path / FILE).stat()
    assert SpecFile(str(tmp_path), RESOURCE).write(b"one")
    assert not os.path.samestat((tmp_path / FILE).stat(), before)


def test_a_file_that_somebody_removed_is_written_again(tmp_path: Path) -> None:
    """Even where the content is the same: where a link to nowhere took its place, and where the directory went too."""
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


def test_no_devices_remove_the_file_whoever_wrote_it(tmp_path: Path) -> None:
    """Also that of a predecessor, which lists devices that are gone; the next device makes it again."""
    (tmp_path / FILE).write_bytes(b"old")
    file = SpecFile(str(tmp_path), RESOURCE)
    assert [file.write(content) for content in (None, None, b"one", None, b"one")] == [True, False, True, True, True]
    assert (tmp_path / FILE).read_bytes() == b"one"


def test_no_devices_need_no_directory(tmp_path: Path) -> None:
    """None is made for them."""
    assert not SpecFile(str(tmp_path / "cdi"), RESOURCE).write(None)
    assert os.listdir(tmp_path) == []


def test_a_file_is_whole_and_on_the_disk_before_it_takes_the_old_one_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is renamed within the directory, from a name that no library reads and the sweep knows."""
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


def test_a_link_in_the_file_s_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """Even at the first write and at the removal."""
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


def test_the_end_removes_the_own_file_alone(tmp_path: Path) -> None:
    """Other resources' files stay, and ending twice is no error."""
    other = SpecFile(str(tmp_path), "example.com/other")
    other.write(b"other")
    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"one")
    file.close()
    file.close()
    assert os.listdir(tmp_path) == ["example.com_other.json"]


def test_the_end_leaves_the_file_of_a_successor(tmp_path: Path) -> None:
    """In a rolling update the new plugin writes, with the same content at the same time, before the old one ends."""
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


def test_the_end_leaves_a_successor_s_file_that_got_the_inode_number_of_the_own_one(tmp_path: Path) -> None:
    """File systems use these numbers again; the time of the last change is another."""
    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"one")
    os.utime(tmp_path / FILE, ns=(1, 1))
    file.close()
    assert os.listdir(tmp_path) == [FILE]


def test_the_end_of_a_plugin_that_wrote_nothing_removes_nothing(tmp_path: Path) -> None:
    """It may have been refused before its first device."""
    (tmp_path / FILE).write_bytes(b"another's")
    SpecFile(str(tmp_path), RESOURCE).close()
    assert (tmp_path / FILE).exists()


def test_the_sweep_removes_what_a_killed_predecessor_left(tmp_path: Path) -> None:
    """Its temporary files and nothing else; a directory that is not there has none."""
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
    assert sorted(file.sweep()) == sorted(left)
    assert file.sweep() == []
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    assert SpecFile(str(tmp_path / "none"), RESOURCE).sweep() == []


@contextlib.contextmanager
def disk_with(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes: the kernel refuses as it does on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    """The error names the file and what to do, nothing else is left, and the next try writes the same content."""
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


def test_after_a_failed_write_the_file_is_still_the_own_one(tmp_path: Path) -> None:
    """The end removes it."""
    file = SpecFile(str(tmp_path), RESOURCE)
    file.write(b"1")
    with disk_with(10), pytest.raises(CdiError):
        file.write(b"2" * 30000)
    file.close()
    assert os.listdir(tmp_path) == []


def test_a_directory_in_the_file_s_place_is_an_error(tmp_path: Path) -> None:
    """Whatever is asked for; no temporary file is left."""
    (tmp_path / FILE).mkdir()
    file = SpecFile(str(tmp_path), RESOURCE)
    for content in (b"one", None):
        with pytest.raises(CdiError, match=f"cannot update the CDI spec {tmp_path / FILE}: Is a directory"):
            file.write(content)
    assert os.listdir(tmp_path) == [FILE]


def test_a_missing_parent_is_an_error(tmp_path: Path) -> None:
    """It is the host's, and not made: where it is missing, the host's files are most likely somewhere else."""
    file = SpecFile(str(tmp_path / "run" / "cdi"), RESOURCE)
    with pytest.raises(CdiError, match=r"No such file or directory; .* \(mounted into the container\)"):
        file.write(b"one")
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_directory_s_place_is_an_error(tmp_path: Path) -> None:
    """For the sweep, for each write and for the end."""
    (tmp_path / "cdi").touch()
    file = SpecFile(str(tmp_path / "cdi"), RESOURCE)
    for action in (file.sweep, lambda: file.write(b"one"), lambda: file.write(None), file.close):
        with pytest.raises(CdiError, match="Not a directory"):
            action()


def test_a_directory_that_is_not_writable_is_an_error(kubelet_dir: str) -> None:
    """For a user other than root; the text says for which."""
    script = (
        "import os, sys\n"
        "from aosp_plugin.framework.cdi.spec_file import SpecFile\n"
        "from aosp_plugin.errors import CdiError\n"
        "if os.geteuid() == 0:\n"
        f"    os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "try:\n"
        "    SpecFile(sys.argv[1], 'example.com/gpu').write(b'one')\n"
        "except CdiError as error:\n"
        "    print(error)\n"
    )
    os.chmod(kubelet_dir, 0o555)
    told = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", script, kubelet_dir], check=True, capture_output=True, text=True
    ).stdout
    os.chmod(kubelet_dir, 0o700)
    uid = NOBODY if ROOT else os.getuid()
    assert f"cannot update the CDI spec {kubelet_dir}/{FILE}: Permission denied; " in told
    assert f"writable for uid {uid}" in told
    assert os.listdir(kubelet_dir) == []
