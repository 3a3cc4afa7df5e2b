"""The Python packages: a wheel and a source distribution of each distribution."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hack.release import source
from hack.release.errors import ReleaseError, run
from hack.release.links import absolute

if TYPE_CHECKING:
    from hack.release.source import Project

DISTRIBUTIONS: Final = (".", "kubelet_standin", "kubectl_phones")
"""The directories with a pyproject.toml."""


def build(project: Project, output: Path, source_url: str) -> None:
    """Build all packages from the files under version control. Raises ReleaseError.

    The environment of this process has hatchling, in the version of deploy/build-requirements.txt for a release.
    """
    with tempfile.TemporaryDirectory(prefix="aosp-release-") as directory:
        source.export(project, Path(directory))
        command = (sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--target", "wheel")
        for name in DISTRIBUTIONS:
            distribution = Path(directory, name)
            settings = distribution / "pyproject.toml"
            settings.write_text(with_urls(settings.read_text(encoding="utf-8"), source_url), encoding="utf-8")
            readme = distribution / "README.md"
            text = absolute(readme.read_text(encoding="utf-8"), source_url, f"v{project.version}", name)
            readme.write_text(text, encoding="utf-8")
            if name != ".":
                shutil.copy2(Path(directory, "LICENSE"), distribution)
            run(*command, "--directory", str(output.resolve()), cwd=distribution)


def with_urls(settings: str, source_url: str) -> str:
    """Return pyproject.toml with the public repository, which the source does not name."""
    if not source_url:
        return settings
    if "\n[project.urls]\n" in settings:
        raise ReleaseError("pyproject.toml has [project.urls] already: build without SOURCE_URL")
    urls = (
        f'Source = "{source_url}"\nChangelog = "{source_url}/blob/HEAD/CHANGELOG.md"\nIssues = "{source_url}/issues"\n'
    )
    return settings.replace("\n[project.scripts]\n", f"\n[project.urls]\n{urls}\n[project.scripts]\n", 1)
