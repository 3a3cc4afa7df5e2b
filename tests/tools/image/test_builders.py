"""The tools that build images, as scripts that record how they are called."""

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


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [(("docker", "podman", "buildah"), "docker"), (("podman", "buildah"), "podman"), (("buildah",), "buildah")],
)
def test_first_tool_that_is_there_builds(tools: Path, installed: tuple[str, ...], chosen: str) -> None:
    for name in installed:
        install(tools, name)
    assert builders.choose() == chosen


def test_docker_without_a_daemon_does_not_build(tools: Path) -> None:
    install(tools, "docker", "exit 1")
    install(tools, "buildah")
    assert builders.choose() == "buildah"
    assert calls(tools) == ["docker buildx inspect"]


def test_machine_without_a_tool_is_told_what_to_install(tools: Path) -> None:
    with pytest.raises(BuildError, match="install docker with buildx, podman or buildah"):
        builders.choose()
    with pytest.raises(BuildError, match="podman is not installed"):
        builders.choose("podman")


def test_docker_builds_for_the_platform_with_the_arguments(tools: Path, tmp_path: Path) -> None:
    install(tools, "docker")
    builders.build("docker", builders.Order("arm64", {"VERSION": "1.2.3"}, {}), tmp_path / "image.tar")
    build_call, save, remove = calls(tools)
    words = build_call.split()
    assert words[:4] == ["docker", "buildx", "build", "--load"]
    assert {"--build-arg=VERSION=1.2.3", "--platform=linux/arm64"} <= set(words)
    assert words[-1] == str(builders.PROJECT)
    assert save == f"docker save --output={tmp_path}/image.tar localhost/aosp-device-plugin-build:arm64"
    assert remove == "docker rmi localhost/aosp-device-plugin-build:arm64"


def test_bases_that_are_not_pulled_are_imported_for_their_platform(tools: Path, tmp_path: Path) -> None:
    install(tools, "podman")
    bases = {"localhost/base:arm64": ("arm64", tmp_path / "root.tar")}
    builders.build("podman", builders.Order("arm64", {}, bases), tmp_path / "image.tar")
    imported, built, *_ = calls(tools)
    assert imported == f"podman import --quiet --arch=arm64 --os=linux {tmp_path}/root.tar localhost/base:arm64"
    assert "--pull=never" in built


def test_failure_is_reported_with_the_end_of_the_output(tools: Path, tmp_path: Path) -> None:
    install(tools, "podman", 'seq 100; echo "no space left on device" >&2; exit 125')
    with pytest.raises(BuildError) as error:
        build("amd64", tmp_path, Settings(builder="podman"))
    first, *_, last = str(error.value).splitlines()
    assert first.startswith("podman build ")
    assert first.endswith(" ... failed with exit code 125:")
    assert last == "no space left on device"


def test_error_of_the_command_is_in_its_output(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hack.image", "--arch", "amd64", "--output", str(tmp_path)])
    assert command.main() == 1
    assert capsys.readouterr().err.startswith("hack.image: no tool that builds images")


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
