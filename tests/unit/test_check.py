"""``aosp-plugin check``: the findings for a container's files and environment."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from aosp_plugin.cli import check, main
from aosp_plugin.config import keys, sources

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="creates device nodes, which requires root")

PHONE = """\
version: v1
verify: char
resource_name: aosp.io/phone
sets: {size: 3}
container_paths: [/dev/binder, /dev/hwbinder, /dev/vndbinder]
"""
NAMES = "aosp_binder3,aosp_binder4,aosp_binder5"


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], keys.Config]:
    """Return a function that loads the text of a configuration file."""

    def loaded(text: str) -> keys.Config:
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return sources.load({}, {}, str(path))[0]

    return loaded


@pytest.fixture
def container(tmp_path: Path) -> Callable[..., str]:
    """Return a function that makes a container's root directory with devices: links to the null device."""

    def made(*paths: str) -> str:
        root = tmp_path / "root"
        (root / "dev").mkdir(parents=True)
        for path in paths:
            (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (root / path.lstrip("/")).symlink_to("/dev/null")
        return str(root)

    return made


def results(text: str, names: str | None, root: str, load: Callable[[str], keys.Config]) -> dict[str, str]:
    environment = {} if names is None else {"BINDER_VISIBLE_DEVICES": names}
    found = check.findings(load(text).resources[0], environment, root)
    return {finding.text.partition(":")[0]: finding.problem for finding in found}


def test_a_set_has_its_devices_and_container_paths(
    load: Callable[[str], keys.Config], container: Callable[..., str]
) -> None:
    paths = ["/dev/binder", "/dev/hwbinder", "/dev/vndbinder", *(f"/dev/{name}" for name in NAMES.split(","))]
    found = results(PHONE, NAMES, container(*paths), load)
    assert found == dict.fromkeys([f"BINDER_VISIBLE_DEVICES={NAMES}", *paths], "")


@pytest.mark.parametrize("missing", ["/dev/hwbinder", "/dev/aosp_binder5"])
def test_a_missing_device_is_found(
    missing: str, load: Callable[[str], keys.Config], container: Callable[..., str]
) -> None:
    paths = ["/dev/binder", "/dev/hwbinder", "/dev/vndbinder", *(f"/dev/{name}" for name in NAMES.split(","))]
    found = results(PHONE, NAMES, container(*(path for path in paths if path != missing)), load)
    assert [path for path, problem in found.items() if problem] == [missing]
    assert "No such file or directory: the plugin did not add it" in found[missing]


@pytest.mark.parametrize("names", [None, ""])
def test_a_container_without_the_variable_got_nothing(
    names: str | None, load: Callable[[str], keys.Config], container: Callable[..., str]
) -> None:
    found = results("version: v1\nverify: char\n", names, container("/dev/aosp_binder0"), load)
    assert "the container got nothing from the plugin" in found["BINDER_VISIBLE_DEVICES="]


def test_a_file_is_no_device(load: Callable[[str], keys.Config], container: Callable[..., str]) -> None:
    root = container()
    Path(root, "dev", "aosp_binder0").touch()
    found = results("version: v1\nverify: char\n", "aosp_binder0", root, load)
    assert "not a character device" in found["/dev/aosp_binder0"]
    assert results("version: v1\nverify: file\n", "aosp_binder0", root, load)["/dev/aosp_binder0"] == ""


def test_a_stand_in_is_not_binder(load: Callable[[str], keys.Config], container: Callable[..., str]) -> None:
    found = results("version: v1\nverify: binder\n", "aosp_binder0", container("/dev/aosp_binder0"), load)
    assert "not a device of the binder driver" in found["/dev/aosp_binder0"]


def test_a_phone_has_its_paths_and_its_binderfs(
    load: Callable[[str], keys.Config], container: Callable[..., str]
) -> None:
    names = ("binder", "hwbinder", "vndbinder")
    paths = [f"{directory}/{name}" for directory in ("/dev", "/dev/binderfs") for name in names]
    root = container(*paths)
    text = "version: v1\nverify: char\nphones: {count: 3}\n"
    assert results(text, ",".join(names), root, load) == dict.fromkeys(
        ["BINDER_VISIBLE_DEVICES=binder,hwbinder,vndbinder", *paths], ""
    )
    assert "/dev/binderfs/binder" not in results(f"{text}isolation: strict\n", ",".join(names), root, load)


@pytest.mark.parametrize("isolation", ["", "isolation: strict\n"])
@pytest.mark.parametrize("variable", ["", "visible_devices_env: ''\n"])
def test_a_claim_with_container_paths_of_its_own_has_its_devices_there(
    load: Callable[[str], keys.Config], container: Callable[..., str], isolation: str, variable: str
) -> None:
    names = ("binder", "hwbinder", "vndbinder")
    own = ["/dev/hwbinder", "/dev/own"]
    root = container(*own, *(() if isolation else (f"/dev/binderfs/{name}" for name in names)))
    table = Path(root, "proc/self/mountinfo")
    table.parent.mkdir(parents=True)
    lines = [
        f"9 1 0:{number} /{name} {path} rw - binder aosp rw\n"
        for number, (name, path) in enumerate(zip(names[1:], own, strict=True))
    ]
    table.write_text("".join(lines), encoding="utf-8")
    text = f"version: v1\nverify: char\napi: dra\nphones: {{count: 3}}\n{isolation}{variable}"
    found = results(text, ",".join(names), root, load)
    assert not any(found.values())
    assert {*own, "/dev/binder", "/dev/vndbinder"} <= found.keys()
    Path(root, "dev/own").unlink()
    assert [path for path, problem in results(text, ",".join(names), root, load).items() if problem] == ["/dev/own"]


def test_a_claim_without_any_device_got_nothing(
    load: Callable[[str], keys.Config], container: Callable[..., str]
) -> None:
    names = "binder,hwbinder,vndbinder"
    text = "version: v1\nverify: char\napi: dra\nphones: {count: 3}\nisolation: strict\n"
    assert [path for path, problem in results(text, names, container(), load).items() if problem] == [
        f"/dev/{name}" for name in names.split(",")
    ]


def test_without_a_variable_the_paths_are_known_from_the_configuration(
    load: Callable[[str], keys.Config], container: Callable[..., str]
) -> None:
    root = container("/dev/binder", "/dev/aosp_binder0")
    sets = results(f"{PHONE}device_list: [volume-mounts]\n", None, root, load)
    assert [path for path, problem in sets.items() if problem] == ["/dev/hwbinder", "/dev/vndbinder"]
    assert results("version: v1\nvisible_devices_env: ''\n", None, root, load).keys() == {"/dev/aosp_binder0"}
    other = results("version: v1\nvisible_devices_env: ''\ndevice_prefix: other\n", None, root, load)
    assert "the container got nothing" in other["/dev/other*"]


@pytest.mark.parametrize(
    ("text", "entry", "expected"),
    [
        ("", "sys/dev", "; runc 1.1.3 to 1.1.6 may close it again unless the host has /dev/char/1:3"),
        ("", "sys/dev/char/1:3", ""),
        ("phones: {count: 3}\n", "sys/dev", ""),
    ],
    ids=["of a binderfs", "of sysfs", "of a phone"],
)
def test_a_found_device_without_an_entry_in_sysfs_may_be_closed_again(
    text: str, entry: str, expected: str, load: Callable[[str], keys.Config], container: Callable[..., str]
) -> None:
    root = container("/dev/binder")
    Path(root, entry).mkdir(parents=True)
    resource = load(f"version: v1\nverify: char\ncontainer_paths: [/dev/binder]\n{text}").resources[0]
    remarks = [it.text for it in check.findings(resource, {"BINDER_VISIBLE_DEVICES": "binder"}, root)]
    assert f"/dev/binder: opened{expected}" in remarks


@needs_root
@pytest.mark.parametrize("mode", [0o666, 0o660, 0o606, 0o444])
def test_a_device_that_some_users_cannot_open_is_named(
    mode: int, load: Callable[[str], keys.Config], container: Callable[..., str]
) -> None:
    root = container()
    path = Path(root, "dev/aosp_binder0")
    os.mknod(path, stat.S_IFCHR, os.makedev(1, 3))
    path.chmod(mode)
    resource = load("version: v1\nverify: char\n").resources[0]
    finding = list(check.findings(resource, {"BINDER_VISIBLE_DEVICES": "aosp_binder0"}, root))[-1]
    assert finding.problem == ""
    assert (f"mode {mode:04o}: not for all users of Android, chmod 0666 on the host" in finding.text) is (mode != 0o666)


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
    file.write_text("version: v1\nverify: char\n", encoding="utf-8")
    assert main.main(["check", "--config", str(file)]) == 0
    assert capsys.readouterr().out.endswith("aosp.io/binder: this container has its binder devices\n")


def test_the_command_requires_one_of_several_resources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "version: v1\nresources:\n- {resource_name: a.io/x, device_prefix: x}\n- {resource_name: a.io/y}\n",
        encoding="utf-8",
    )
    assert main.main(["check", "--config", str(file)]) == 2
    assert main.main(["check", "--config", str(file), "--resource", "a.io/z"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("several resources are configured: --resource must be one of a.io/x, a.io/y")
    assert "resource 'a.io/z' is not configured" in second
