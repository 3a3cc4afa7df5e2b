"""``aosp-plugin check``: the findings for a container's files and environment."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from aosp_plugin.cli import check, main
from aosp_plugin.config import sources

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="creates device nodes, which requires root")

PHONE = """\
version: v1
verify: char
resource_name: aosp.io/phone
sets: {size: 3}
container_paths: [/dev/binder, /dev/hwbinder, /dev/vndbinder]
"""
CHAR, BINDER = (f"version: v1\nverify: {verify}\n" for verify in ("char", "binder"))
NAMES = "aosp_binder3,aosp_binder4,aosp_binder5"
PATHS = ["/dev/binder", "/dev/hwbinder", "/dev/vndbinder", *(f"/dev/{name}" for name in NAMES.split(","))]

Checked = Callable[..., dict[str, str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root directory of a container, with /dev."""
    (tmp_path / "root/dev").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def checked(root: Path) -> Checked:
    """Return a function that checks a container with devices, which are links to the null device.

    It takes the text of a configuration file, the names in the container's variable, and the paths of the devices. It
    returns the problem or the remark of each finding, by the beginning of its text.
    """

    def findings(text: str, names: str | None, *paths: str) -> dict[str, str]:
        for path in paths:
            (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (root / path.lstrip("/")).symlink_to("/dev/null")
        file = root.with_name("config.yaml")
        file.write_text(text, encoding="utf-8")
        (resource,) = sources.load({}, {}, str(file))[0].resources
        environment = {} if names is None else {"BINDER_VISIBLE_DEVICES": names}
        found = [(*it.text.partition(": "), it.problem) for it in check.findings(resource, environment, str(root))]
        return {subject: problem or remark for subject, _, remark, problem in found}

    return findings


@pytest.mark.parametrize("missing", [None, "/dev/hwbinder", "/dev/aosp_binder5"])
def test_a_set_has_its_devices_and_container_paths(missing: str | None, checked: Checked) -> None:
    found = checked(PHONE, NAMES, *(path for path in PATHS if path != missing))
    assert [*found] == [f"BINDER_VISIBLE_DEVICES={NAMES}", *PATHS]
    failed = {
        path: text for path, text in found.items() if "No such file or directory: the plugin did not add it" in text
    }
    assert [*failed] == ([] if missing is None else [missing])


@pytest.mark.parametrize("names", [None, ""])
def test_a_container_without_the_variable_got_nothing(names: str | None, checked: Checked) -> None:
    found = checked(CHAR, names, "/dev/aosp_binder0")
    assert [*found] == ["BINDER_VISIBLE_DEVICES="]
    assert "the container got nothing from the plugin" in found["BINDER_VISIBLE_DEVICES="]


@pytest.mark.parametrize(
    ("text", "name", "result"),
    [
        (CHAR, "file", "not a character device"),
        ("version: v1\nverify: file\n", "file", "opened"),
        (BINDER, "aosp_binder0", "not a device of the binder driver"),
    ],
)
def test_files_and_stand_ins_are_no_binder_devices(
    text: str, name: str, result: str, root: Path, checked: Checked
) -> None:
    (root / "dev/file").touch()
    assert checked(text, name, "/dev/aosp_binder0")[f"/dev/{name}"].startswith(result)


def test_a_phone_has_its_paths_and_its_binderfs(checked: Checked) -> None:
    names = ("binder", "hwbinder", "vndbinder")
    paths = [f"{directory}/{name}" for directory in ("/dev", "/dev/binderfs") for name in names]
    text = f"{CHAR}phones: {{count: 3}}\n"
    found = checked(text, ",".join(names), *paths)
    assert found == {"BINDER_VISIBLE_DEVICES=binder,hwbinder,vndbinder": "", **dict.fromkeys(paths, "opened")}
    assert "/dev/binderfs/binder" not in checked(f"{text}isolation: strict\n", ",".join(names))


@pytest.mark.parametrize("isolation", ["", "isolation: strict\n"])
@pytest.mark.parametrize("variable", ["", "visible_devices_env: ''\n"])
def test_a_claim_with_container_paths_of_its_own_has_its_devices_there(
    isolation: str, variable: str, root: Path, checked: Checked
) -> None:
    names = ("binder", "hwbinder", "vndbinder")
    own = ["/dev/hwbinder", "/dev/own"]
    lines = [
        f"9 1 0:{number} /{name} {path} rw - binder aosp rw\n"
        for number, (name, path) in enumerate(zip(names[1:], own, strict=True))
    ]
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("".join(lines), encoding="utf-8")
    text = f"{CHAR}api: dra\nphones: {{count: 3}}\n{isolation}{variable}"
    binderfs = [] if isolation else [f"/dev/binderfs/{name}" for name in names]
    found = checked(text, ",".join(names), *own, *binderfs)
    absent = [path for path, result in found.items() if result.startswith("does not exist, which is right if")]
    assert absent == ["/dev/binder", "/dev/vndbinder"]
    assert {found[path] for path in found.keys() - absent} <= {"", "opened"}
    assert {*own} <= found.keys()
    (root / "dev/own").unlink()
    failed = [path for path, result in checked(text, ",".join(names)).items() if "did not add it" in result]
    assert failed == ["/dev/own"]


def test_a_claim_without_any_device_got_nothing(checked: Checked) -> None:
    names = ("binder", "hwbinder", "vndbinder")
    found = checked(f"{CHAR}api: dra\nphones: {{count: 3}}\nisolation: strict\n", ",".join(names))
    assert [path for path, text in found.items() if "did not add it" in text] == [f"/dev/{name}" for name in names]


def test_without_a_variable_the_paths_are_known_from_the_configuration(checked: Checked) -> None:
    sets = checked(f"{PHONE}device_list: [volume-mounts]\n", None, "/dev/binder", "/dev/aosp_binder0")
    assert ["did not add it" in sets[path] for path in PATHS[:3]] == [False, True, True]
    assert checked(f"{BINDER}visible_devices_env: ''\n", None).keys() == {"/dev/aosp_binder0"}
    other = checked(f"{BINDER}visible_devices_env: ''\ndevice_prefix: other\n", None)
    assert "the container got nothing" in other["/dev/other*"]


@pytest.mark.parametrize(
    ("text", "entry", "expected"),
    [
        pytest.param("", "sys/dev", "; runc 1.1.3 to 1.1.6 may close it again", id="of a binderfs"),
        pytest.param("", "sys/dev/char/1:3", "", id="of sysfs"),
        pytest.param("phones: {count: 3}\n", "sys/dev", "", id="of a phone"),
    ],
)
def test_a_found_device_without_an_entry_in_sysfs_may_be_closed_again(
    text: str, entry: str, expected: str, root: Path, checked: Checked
) -> None:
    (root / entry).mkdir(parents=True)
    found = checked(f"{CHAR}container_paths: [/dev/binder]\n{text}", "binder", "/dev/binder")
    assert found["/dev/binder"].partition(" unless")[0] == f"opened{expected}"


@needs_root
@pytest.mark.parametrize("mode", [0o666, 0o660, 0o606, 0o444])
def test_a_device_that_some_users_cannot_open_is_named(mode: int, root: Path, checked: Checked) -> None:
    path = root / "dev/aosp_binder0"
    os.mknod(path, stat.S_IFCHR, os.makedev(1, 3))
    path.chmod(mode)
    remark = checked(CHAR, "aosp_binder0")["/dev/aosp_binder0"]
    assert remark.startswith("opened")
    assert (f"mode {mode:04o}: not for all users of Android, chmod 0666 on the host" in remark) is (mode != 0o666)


def test_the_command_prints_each_check_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(PHONE, encoding="utf-8")
    monkeypatch.delenv("BINDER_VISIBLE_DEVICES", raising=False)
    assert main.main(["check", "--config", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("FAILED  BINDER_VISIBLE_DEVICES=\n        the container got nothing"), out
    assert "aosp.io/phone: checks failed in this container: 1;" in err, err
    monkeypatch.setenv("BINDER_VISIBLE_DEVICES", "null")
    file.write_text(CHAR, encoding="utf-8")
    assert main.main(["check", "--config", str(file)]) == 0
    assert capsys.readouterr().out.endswith("aosp.io/binder: this container has its binder devices\n")


def test_the_command_requires_one_of_several_resources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nresources: [{resource_name: a.io/x, device_prefix: x}, {resource_name: a.io/y}]\n")
    for options, problem in (
        ([], "several resources are configured: --resource must be one of a.io/x, a.io/y"),
        (["--resource", "a.io/z"], "resource 'a.io/z' is not configured"),
    ):
        assert main.main(["check", "--config", str(file), *options]) == 2
        assert problem in capsys.readouterr().err
