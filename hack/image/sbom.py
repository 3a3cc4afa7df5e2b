"""Lists what an image contains, as CycloneDX: Python, Python packages and Debian's packages, read from its files."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Final

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from hack.image.assemble.debian import RECORDS, fields

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

    from hack.image.archive import Image, Written

_STATUS: Final = RECORDS.removeprefix("/")
_METADATA: Final = re.compile(r"opt/venv/lib/python[\d.]+/site-packages/[^/]+\.dist-info/METADATA")
_PLUGIN: Final = "aosp-device-plugin"
_PYTHON: Final = re.compile(r"usr/local/bin/python3\.\d+")
"""A Python that is not from one of Debian's packages."""


def document(image: Image, written: Written, epoch: int) -> str:
    """Return the document for an image, the same for the same image."""
    labels = image.settings["Labels"]
    main = Component(
        type=ComponentType.CONTAINER,
        name=_PLUGIN,
        version=labels["org.opencontainers.image.version"],
        bom_ref=f"{_PLUGIN}-{image.arch}",
        licenses=[LicenseExpression(labels["org.opencontainers.image.licenses"])],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=written.digest.removeprefix("sha256:"))],
        properties=[Property(name="architecture", value=image.arch)],
    )
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, written.digest), components=components(image))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = main
    bom.register_dependency(main, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def components(image: Image) -> list[Component]:
    """Return what an image contains."""
    return [*_python(image), *_python_packages(image), *_debian_packages(image)]


def _python(image: Image) -> Iterator[Component]:
    if any(_PYTHON.fullmatch(path) for path in image.files):
        version = dict(re.findall(r"^(\w+) = (.*)$", image.text("opt/venv/pyvenv.cfg"), re.MULTILINE))["version"]
        license_ = LicenseExpression("PSF-2.0")
        yield _component(PackageURL("generic", name="python", version=version), licenses=[license_])


def _python_packages(image: Image) -> Iterator[Component]:
    for path in sorted(image.files):
        if _METADATA.fullmatch(path):
            package = HeaderParser().parsestr(image.text(path))
            name = re.sub(r"[-_.]+", "-", package["Name"]).lower()
            kind = ComponentType.APPLICATION if name == _PLUGIN else ComponentType.LIBRARY
            yield _component(
                PackageURL("pypi", name=name, version=package["Version"]), kind, licenses=_license(package)
            )


def _license(package: Message) -> list[LicenseExpression | DisjunctiveLicense]:
    if package["License-Expression"]:
        return [LicenseExpression(package["License-Expression"])]
    if package["License"] and "\n" not in package["License"]:
        return [DisjunctiveLicense(name=package["License"])]
    classified = [value for value in package.get_all("Classifier", []) if value.startswith("License ::")]
    return [DisjunctiveLicense(name=value.rpartition(" :: ")[2]) for value in classified]


def _debian_packages(image: Image) -> Iterator[Component]:
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', image.text("usr/lib/os-release"), re.MULTILINE))
    distro = f"{release['ID']}-{release['VERSION_ID']}"
    for path in sorted(image.files):
        if path.startswith(f"{_STATUS}/") and not path.endswith(".md5sums"):
            package = fields(image.text(path))
            source = package.get("Source", package["Package"])
            name, _, version = source.partition(" ")
            # Advisories are about the source.
            upstream = f"{name}@{version.strip('()') or package['Version']}"
            qualifiers = {"arch": package["Architecture"], "distro": distro, "upstream": upstream}
            yield _component(PackageURL("deb", release["ID"], package["Package"], package["Version"], qualifiers))


def _component(
    url: PackageURL,
    kind: ComponentType = ComponentType.LIBRARY,
    *,
    licenses: list[LicenseExpression | DisjunctiveLicense] | None = None,
) -> Component:
    return Component(type=kind, name=url.name, version=url.version, purl=url, bom_ref=str(url), licenses=licenses)
