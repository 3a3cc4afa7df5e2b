"""Lists what an image contains, as CycloneDX: the Python packages and Debian's packages, read from its files.

cyclonedx-py lists the Python packages of an interpreter that it can run; this image can be for another machine.
"""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from email.parser import HeaderParser
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any, Final

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from aosp_plugin import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PLUGIN: Final = "aosp-device-plugin"


def document(root: Path, arch: str, digest: str, epoch: int) -> str:
    """Return the document for an image with this root directory, the same for the same image."""
    main = Component(
        type=ComponentType.CONTAINER,
        name=_PLUGIN,
        version=__version__,
        bom_ref=f"{_PLUGIN}-{arch}",
        licenses=[LicenseExpression("Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))],
        properties=[Property(name="architecture", value=arch)],
    )
    components = [*_python_packages(root), *_debian_packages(root)]
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, digest), components=components)
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = main
    bom.register_dependency(main, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _python_packages(root: Path) -> Iterator[Component]:
    for package in distributions(path=[*map(str, root.glob("opt/venv/lib/python*/site-packages"))]):
        url = PackageURL("pypi", name=re.sub(r"[-_.]+", "-", package.name).lower(), version=package.version)
        kind = ComponentType.APPLICATION if url.name == _PLUGIN else ComponentType.LIBRARY
        yield _component(url, kind, _licenses(package.metadata.json))


def _licenses(metadata: dict[str, Any]) -> list[LicenseExpression | DisjunctiveLicense]:
    if expression := metadata.get("license_expression"):
        return [LicenseExpression(expression)]
    if (name := metadata.get("license", "")) and "\n" not in name:
        return [DisjunctiveLicense(name=name)]
    classified = [value for value in metadata.get("classifier", []) if value.startswith("License ::")]
    return [DisjunctiveLicense(name=value.rpartition(" :: ")[2]) for value in classified]


def _debian_packages(root: Path) -> Iterator[Component]:
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', (root / "usr/lib/os-release").read_text(), re.MULTILINE))
    for path in (root / "var/lib/dpkg/status.d").iterdir():
        if path.suffix != ".md5sums":
            package = HeaderParser().parsestr(path.read_text(encoding="utf-8"))
            name, _, version = package.get("Source", package["Package"]).partition(" ")
            qualifiers = {
                "arch": package["Architecture"],
                "distro": f"{release['ID']}-{release['VERSION_ID']}",
                "upstream": f"{name}@{version.strip('()') or package['Version']}",  # advisories are about the source
            }
            yield _component(PackageURL("deb", release["ID"], package["Package"], package["Version"], qualifiers))


def _component(
    url: PackageURL,
    kind: ComponentType = ComponentType.LIBRARY,
    licenses: list[LicenseExpression | DisjunctiveLicense] | None = None,
) -> Component:
    return Component(type=kind, name=url.name, version=url.version, purl=url, bom_ref=str(url), licenses=licenses)
