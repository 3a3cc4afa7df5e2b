"""Packages of any Debian suite and architecture, without a change to this machine's packages and package lists.

A suite has a configuration of apt's own: its lists, its cache and an empty list of installed packages. Suites move: a
part that is made of their packages records the versions that it got.
"""

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.common import packages
from tests.e2e.common.packages import MissingError, command

OPTIONS: Final = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
"""Of a line in apt's list of sources."""
_ARCHIVE: Final = "Debian"
_SECURITY: Final = "Debian-Security"
_ARCHIVES: Final = {
    _ARCHIVE: "http://deb.debian.org/debian",
    _SECURITY: "http://deb.debian.org/debian-security",
}
_WITHOUT_SECURITY: Final = ("sid", "experimental")
"""Suites that get security fixes as new versions, like all others."""


class Suite:
    """A suite of Debian, whose package lists are in ``directory``."""

    def __init__(
        self, name: str, directory: Path, *, architecture: str = "amd64", sources: bool = False, security: bool = True
    ) -> None:
        """Get the suite's package lists, with ``sources`` those of the source packages too. Raises MissingError.

        ``security`` is whether to use the archive with its security fixes, if it has one.
        """
        if not shutil.which("apt-get"):
            raise MissingError(f"requires apt-get, for packages of Debian {name}")
        self.name = name
        self._directory = directory
        (directory / "archives/partial").mkdir(parents=True, exist_ok=True)
        (directory / "status").touch()
        kinds, found = ("deb", "deb-src") if sources else ("deb",), archives(name, security=security)
        lines = [f"{kind} {OPTIONS} {archive} main\n" for kind in kinds for archive in found]
        (directory / "sources.list").write_text("".join(lines))
        values = {
            "Dir::Etc::SourceList": directory / "sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State": directory,
            "Dir::State::Status": directory / "status",
            "Dir::Cache": directory,
            "APT::Architecture": architecture,
            "APT::Architectures::": architecture,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
        }
        self._configuration = directory / "apt.conf"
        self._configuration.write_text("".join(f'{name} "{value}";\n' for name, value in values.items()))
        self._apt("apt-get", "update", "--quiet")

    def download(self, *names: str) -> list[Path]:
        """Return packages alone, as files."""
        target = self._directory / "downloaded"
        target.mkdir(exist_ok=True)
        self._apt("apt-get", "download", "--quiet", *names, directory=target)
        return [file for name in names for file in target.glob(f"{name}_*.deb")]

    def download_all(self, *names: str) -> list[Path]:
        """Return packages and all that they depend on, as files."""
        self._apt("apt-get", "install", "--quiet", "--yes", "--download-only", *names)
        return sorted((self._directory / "archives").glob("*.deb"))

    def source(self, name: str, target: Path) -> Path:
        """Unpack a source package below ``target``, which is empty, with Debian's patches, and return its directory."""
        packages.install(["dpkg-dev"])
        self._apt("apt-get", "source", "--quiet", name, directory=target)
        return next(path for path in target.iterdir() if path.is_dir())

    def field(self, package: str, field: str) -> str:
        """Return a field of a package's newest version, such as ``Version`` or ``Depends``. Raises MissingError."""
        shown = self._apt("apt-cache", "show", "--no-all-versions", package)
        found = re.search(rf"^{field}: (.*)$", shown, re.MULTILINE)
        if found is None:
            raise MissingError(f"{package} of Debian {self.name} has no field {field}")
        return found[1]

    def _apt(self, *words: str, directory: Path | None = None) -> str:
        return command("env", f"APT_CONFIG={self._configuration}", *words, directory=directory, seconds=1800)


def versions(files: Iterable[Path]) -> list[str]:
    """Return names and versions of packages, from the names of their files."""
    return [re.sub(r"_[^_]*\.deb$", "", file.name) for file in files]


def unpack(files: Sequence[Path], target: Path) -> None:
    """Unpack the files of packages into a directory, without their scripts."""
    for file in files:
        command("dpkg", "--extract", str(file), str(target), seconds=600)


def archives(name: str, *, security: bool = True) -> list[str]:
    """Return the archives with a suite and with its security fixes, each with the suite's name there."""
    found = [f"{_address(_ARCHIVE)} {name}"]
    if security and name not in _WITHOUT_SECURITY:
        found.append(f"{_address(_SECURITY)} {name}-security")
    return found


def _address(label: str) -> str:
    """Return an archive's address: that of this machine's sources, which may be a mirror, or else Debian's own."""
    sites = command(
        *("apt-get", "indextargets", "--format", "$(SITE)"),
        *("Created-By: Packages", "Origin: Debian", f"Label: {label}", "Component: main"),
    ).split()
    return sites[0] if sites else _ARCHIVES[label]
