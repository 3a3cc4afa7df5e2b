"""hack/version.py: one source of the version, and every place that repeats it."""

import subprocess
from pathlib import Path

import pytest

import aosp_plugin
from hack import version
from tests.support import write_files

IMAGE = "localhost/aosp-device-plugin:0.1.0"
ARCHIVE = "aosp-device-plugin-0.1.0-linux-amd64.tar"
WHEEL = "aosp_device_plugin-0.1.0-py3-none-any.whl"

FILES = {
    "aosp_plugin/__init__.py": '__version__ = "0.1.0"\n',
    "kubelet_standin/__init__.py": '__version__ = "0.1.0"\n\n__all__ = []\n',
    "deploy/chart/Chart.yaml": "apiVersion: v2\nversion: 0.1.0\nappVersion: 0.1.0\nkubeVersion: '>=1.22.0-0'\n",
    "docs/install.md": f"Import {ARCHIVE} and {WHEEL}.\n",
    "pod.yaml": f"image: {IMAGE}  # another image: busybox:0.1.0\n",
    "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n- Phones.\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory under version control with files that repeat the version, and a picture."""
    write_files(tmp_path, FILES)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG " + ARCHIVE.encode())
    for command in ("init", "add ."):
        subprocess.run(["/usr/bin/git", *command.split()], cwd=tmp_path, check=True, capture_output=True)  # noqa: S603 - constant
    return tmp_path


def text_of(project: Path, name: str) -> str:
    return (project / name).read_text(encoding="utf-8")


def test_every_place_has_the_version_of_the_source() -> None:
    other = [
        name for name, text in version.texts() if version.with_version(name, text, aosp_plugin.__version__) != text
    ]
    assert other == [], "run `make version VERSION=...`"
    assert version.current() == aosp_plugin.__version__


def test_a_new_version_is_written_to_every_place(project: Path) -> None:
    changed = version.set_version("1.12.0", "2030-01-31", project)
    assert set(changed) == FILES.keys()
    assert version.current(project) == "1.12.0"
    for name in FILES.keys() - {"CHANGELOG.md"}:
        busybox = "busybox:0.1.0"
        expected = FILES[name].replace(busybox, "").replace("0.1.0", "1.12.0")
        assert text_of(project, name).replace(busybox, "") == expected


def test_a_release_takes_the_unreleased_entries_of_the_changelog(project: Path) -> None:
    for _ in range(2):
        version.set_version("0.2.0", "2030-01-31", project)
        assert text_of(project, "CHANGELOG.md") == (
            "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2030-01-31\n\n- Phones.\n"
        )


@pytest.mark.parametrize("invalid", ["1.2", "v1.2.3", "1.2.3rc1", "1.2.3\n"])
def test_a_version_that_no_release_can_have_is_rejected(project: Path, invalid: str) -> None:
    with pytest.raises(version.VersionError, match=r"expected 1\.2\.3"):
        version.set_version(invalid, "2030-01-31", project)
    assert version.current(project) == "0.1.0"
