"""buildah, as a script that records how it is called."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from hack.image import __main__ as command
from hack.image import builders, debian_base
from hack.image.build import Settings, build
from hack.image.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that is the only one in PATH, beside that of the shell."""
    directory = tmp_path / "tools"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda name: str(directory / name) if (directory / name).exists() else None)
    return directory


def install(tools: Path, name: str, script: str = "true") -> None:
    path = tools / name
    path.write_text(f'#!/bin/sh\necho "$0" "$@" >> {shlex.quote(str(tools / "calls"))}\n{script}\n')
    path.chmod(0o755)


def calls(tools: Path) -> list[str]:
    return (tools / "calls").read_text().replace(f"{tools}/", "").splitlines()


def test_buildah_builds_for_the_platform_with_bases_that_are_not_pulled(tools: Path, tmp_path: Path) -> None:
    install(tools, "buildah", "echo container")
    bases = {"localhost/base:arm64": ("arm64", tmp_path / "root.tar")}
    builders.build(builders.Order("arm64", {"VERSION": "1.2.3"}, bases), tmp_path / "image.tar")
    create, add, _, commit, built, push = (call.partition("--storage-driver=vfs ")[2] for call in calls(tools))
    assert create == "from --arch=arm64 scratch"
    assert add == f"add --quiet container {tmp_path}/root.tar /"
    assert commit == "commit --quiet --rm container localhost/base:arm64"
    assert {"--pull=never", "--build-arg=VERSION=1.2.3", "--platform=linux/arm64"} <= set(built.split())
    tag = "localhost/aosp-device-plugin-build:arm64"
    assert push == f"push --quiet {tag} docker-archive:{tmp_path}/image.tar:{tag}"


def test_failure_is_reported_with_the_end_of_the_output(tools: Path, tmp_path: Path) -> None:
    install(tools, "buildah", 'seq 100; echo "no space left on device" >&2; exit 125')
    with pytest.raises(BuildError) as error:
        build("amd64", tmp_path, Settings())
    first, *_, last = str(error.value).splitlines()
    assert first.startswith("buildah --root=")
    assert first.endswith(" ... failed with exit code 125:")
    assert last == "no space left on device"


def test_error_of_the_command_is_in_its_output(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hack.image", "--arch", "amd64", "--output", str(tmp_path)])
    assert command.main() == 1
    assert capsys.readouterr().err.startswith("hack.image: buildah is not installed")


def test_paths_of_a_package_are_read_from_the_listing_of_its_files() -> None:
    lines = (
        "drwxr-xr-x root/root         0 2026-01-01 10:00 ./",
        "drwxr-xr-x root/root         0 2026-01-01 10:00 ./usr/lib/",
        "-rw-r--r-- root/root         5 2026-01-01 10:00 ./usr/lib/a b.txt",
        "lrwxrwxrwx root/root         0 2026-01-01 10:00 ./lib -> usr/lib",
        "hrwxr-xr-x root/root         0 2026-01-01 10:00 ./usr/bin/perl link to ./usr/bin/perl5.40",
    )
    expected = ["/.", "/usr/lib", "/usr/lib/a b.txt", "/lib", "/usr/bin/perl"]
    assert [debian_base.path_of(line) for line in lines] == expected
