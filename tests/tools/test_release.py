"""hack/release: what a release claims about itself, and that it depends on the commit alone."""

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from aosp_plugin import __version__
from hack import files
from hack.image.build import ARCHITECTURES
from hack.release import __main__ as command
from hack.release import images, krew, single_file, source
from hack.release.chart import pack, pack_manifests
from hack.release.errors import ReleaseError
from hack.release.links import absolute
from tests.support import write_files

IMAGE = "registry.example.com/aosp-device-plugin"
DIGEST = "sha256:" + "1" * 64
URL = "https://git.example.com/org/aosp-device-plugin"

CHANGELOG = """\
# Changelog

## Unreleased

- Later.

## 0.2.0 - 2030-01-31

- Phones.

## 0.1.0 - 2029-01-31

- First.
"""
PROJECT = {
    "aosp_plugin/__init__.py": '__version__ = "0.2.0"\n',
    "CHANGELOG.md": CHANGELOG,
    "Dockerfile": f"# syntax\nARG BASE=docker.io/library/python:3.13@{DIGEST}\nFROM ${{BASE}}\n",
    "requirements.txt": "",
    "deploy/build-requirements.txt": "",
}


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["/usr/bin/git", *identity, *arguments], cwd=root, check=True, capture_output=True)  # noqa: S603


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a checkout without changes."""
    directory = tmp_path / "project"
    write_files(directory, PROJECT)
    git(directory, "init", "--quiet")
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "--message=Release")
    return directory


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return an empty directory for a release."""
    directory = tmp_path / "dist"
    directory.mkdir()
    return directory


def image_archive(path: Path, architecture: str) -> None:
    """Write an image archive."""
    platform = {"architecture": architecture, "os": "linux"}
    config = files.compact_json(platform)
    manifest = files.compact_json({"config": {"digest": f"sha256:{hashlib.sha256(config).hexdigest()}"}, "layers": []})
    blobs = {hashlib.sha256(content).hexdigest(): content for content in (config, manifest)}
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    entry = {"mediaType": "m", "digest": digest, "size": len(manifest), "platform": platform}
    contents = {"index.json": files.compact_json({"manifests": [entry]}), "oci-layout": b"{}", "manifest.json": b"[]"}
    path.write_bytes(files.tar(contents | {f"blobs/sha256/{name}": content for name, content in blobs.items()}, 0))


def test_version_and_commit_are_those_of_the_checkout_and_a_tag_names_the_version(root: Path) -> None:
    project = source.read(root)
    assert (project.version, len(project.revision), project.changed) == ("0.2.0", 40, ())
    source.check(project, tag="v0.2.0", allow_changes=False)
    with pytest.raises(ReleaseError, match=r"the tag is v0\.3\.0, the version 0\.2\.0"):
        source.check(project, tag="v0.3.0", allow_changes=False)


def test_files_that_are_not_committed_are_an_error_unless_they_are_allowed(root: Path) -> None:
    (root / "new.txt").touch()
    project = source.read(root)
    assert project.revision.endswith("-dirty")
    with pytest.raises(ReleaseError, match=r"not committed: new\.txt; commit them, or build with CHANGES=yes"):
        source.check(project, tag="", allow_changes=False)
    source.check(project, tag="", allow_changes=True)
    with pytest.raises(ReleaseError, match="tagged"):
        source.check(project, tag="v0.2.0", allow_changes=True)


@pytest.mark.parametrize("heading", ["## Unreleased", "## 0.2.0 - soon"])
def test_a_tagged_release_has_a_date_in_the_changelog(root: Path, heading: str) -> None:
    (root / "CHANGELOG.md").write_text(f"{heading}\n\n- Phones.\n", encoding="utf-8")
    git(root, "commit", "--quiet", "--all", "--message=Change")
    with pytest.raises(ReleaseError, match=r"run `make version VERSION=0\.2\.0`"):
        source.check(source.read(root), tag="v0.2.0", allow_changes=False)


def test_files_for_kubectl_and_hosts_are_packed_with_the_image_of_the_release(output: Path) -> None:
    with tarfile.open(pack_manifests(source.read(source.ROOT), output, IMAGE)) as archive:
        removal = archive.extractfile("deploy/remove.yaml")
        assert removal is not None
        assert f"image: {IMAGE}:{__version__}\n" in removal.read().decode()
        assert {"deploy/base/manifests.yaml", "deploy/apparmor/aosp-phone"} <= {*archive.getnames()}
        assert [name for name in archive.getnames() if "chart" in name] == []


def test_the_project_s_chart_can_be_packed(output: Path) -> None:
    with tarfile.open(pack(source.read(source.ROOT), output, IMAGE, DIGEST, URL)) as archive:
        values, chart = (
            yaml.safe_load(archive.extractfile(f"aosp-device-plugin/{name}.yaml") or b"")
            for name in ("values", "Chart")
        )
    assert (values["image"]["repository"], values["image"]["digest"]) == (IMAGE, DIGEST)
    assert values["config"]["runbook_url"].startswith(f"{URL}/blob/v")
    assert chart["home"] == URL
    (listed,) = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert listed["image"] == f"{IMAGE}@{DIGEST}"
    links = yaml.safe_load(chart["annotations"]["artifacthub.io/links"])
    assert [link["name"] for link in links] == ["documentation", "support"]


def test_the_layout_has_everything_that_the_index_names(tmp_path: Path) -> None:
    archives = [tmp_path / f"{arch}.tar" for arch in ARCHITECTURES]
    for path, arch in zip(archives, ARCHITECTURES, strict=True):
        image_archive(path, arch)
    digest = images.write_layout(archives, tmp_path / "layout")
    blobs = {f"sha256:{path.name}": path.read_bytes() for path in (tmp_path / "layout/blobs/sha256").iterdir()}
    assert all(f"sha256:{hashlib.sha256(content).hexdigest()}" == name for name, content in blobs.items())
    (entry,) = json.loads((tmp_path / "layout/index.json").read_bytes())["manifests"]
    assert entry["digest"] == digest
    index = json.loads(blobs[digest])
    assert [entry["platform"]["architecture"] for entry in index["manifests"]] == list(ARCHITECTURES)
    configs = [json.loads(blobs[manifest["digest"]])["config"]["digest"] for manifest in index["manifests"]]
    assert blobs.keys() == {digest, *configs, *(manifest["digest"] for manifest in index["manifests"])}


COMMAND = """\
import importlib.util
def main():
    print(__file__, importlib.util.find_spec("pytest"))
"""


@pytest.mark.parametrize("python", [sys.implementation.cache_tag, "cpython-299"])
def test_a_single_file_unpacks_itself_for_all_users_and_uses_no_package_of_the_host(
    tmp_path: Path, python: str
) -> None:
    """It says which Pythons it is for, if it is for another one. The umask is that of the unit."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("aosp_plugin/__init__.py", "")
        archive.writestr("aosp_plugin/__main__.py", COMMAND)
    path, wheels = tmp_path / "aosp-plugin", {f"{python}-{os.uname().machine}": {"plugin.whl": wheel.getvalue()}}
    path.write_bytes(single_file.program(wheels, f"{tmp_path}/cache/1", 10**9))
    done = subprocess.run([sys.executable, path], umask=0o077, capture_output=True, text=True, check=False)  # noqa: S603
    if python == "cpython-299":
        assert done.returncode == 1
        assert f"runs with {python}-{os.uname().machine}, but this is cpython-3" in done.stderr
        return
    (byte_code,) = tmp_path.glob("cache/1-*/*/aosp_plugin/__pycache__/__main__.*.pyc")
    assert done.stdout.split() == [str(byte_code.parents[1] / "__main__.py"), "None"], done.stderr
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (byte_code, *byte_code.parents[:4])}
    assert modes == {0o644, 0o755}


def test_krew_gets_a_program_that_runs_and_its_checksum(output: Path) -> None:
    krew.build(source.read(source.ROOT), output, URL)
    (platform,) = yaml.safe_load((output / "phones.yaml").read_text())["spec"]["platforms"]
    archive = output / platform["uri"].rpartition("/")[2]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as packed:
        packed.extractall(output, filter="data")
    printed = subprocess.check_output([output / platform["bin"], "--version"], text=True)  # noqa: S603
    assert printed == f"kubectl-phones {__version__}\n"


def test_relative_links_lead_to_the_files_of_the_tag() -> None:
    text = "[a](docs/a.md#b) ![p](docs/p.png) [h](#heading) [web](https://example.com/x)"
    assert absolute(text, URL, "v0.2.0") == (
        f"[a]({URL}/blob/v0.2.0/docs/a.md#b) ![p]({URL}/raw/v0.2.0/docs/p.png) [h](#heading) [web](https://example.com/x)"
    )
    assert absolute(text, "", "v0.2.0") == text
    assert absolute("[a](../docs/a.md#b)", URL, "v0.2.0", "tool") == f"[a]({URL}/blob/v0.2.0/docs/a.md#b)"


def test_a_directory_with_files_of_others_is_not_emptied(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (output / "thesis.txt").touch()
    assert command.main(["--output", str(output), "--allow-changes", "--without-images"]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert (output / "thesis.txt").exists()


# -- what it runs


def test_a_release_installs_only_what_has_a_locked_hash() -> None:
    """Whatever is installed may change the packages, or the image."""
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    command = ("make", "--dry-run", "--always-make", "--no-print-directory", "release", "VENV=absent")
    result = subprocess.run(command, cwd=source.ROOT, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
    installs = [line for line in result.stdout.splitlines() if " install " in line]
    assert installs
    assert [line for line in installs if "--require-hashes" not in line] == []
    assert "absent" not in result.stdout
