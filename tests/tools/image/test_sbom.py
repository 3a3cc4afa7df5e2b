"""The list of what an image contains."""

import json
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from aosp_plugin import __version__
from hack.image import sbom
from tests.support import write_files

SITE_PACKAGES = "opt/venv/lib/python3.13/site-packages"
FILES = {
    f"{SITE_PACKAGES}/aosp_device_plugin-1.2.3.dist-info/METADATA": "Name: aosp-device-plugin\nVersion: 1.2.3\n",
    f"{SITE_PACKAGES}/PyYAML-6.0.dist-info/METADATA": "Name: PyYAML\nVersion: 6.0\nLicense: MIT\n",
    f"{SITE_PACKAGES}/both-1.dist-info/METADATA": "Name: Both_Names\nVersion: 1\n"
    "License-Expression: MIT OR Apache-2.0\n",
    f"{SITE_PACKAGES}/old-1.dist-info/METADATA": "Name: old\nVersion: 1\n"
    "Classifier: License :: OSI Approved :: Python Software Foundation License\n",
    f"{SITE_PACKAGES}/old-1.dist-info/RECORD": "",
    "usr/lib/os-release": 'PRETTY_NAME="Debian"\nID=debian\nVERSION_ID="13"\n',
    "var/lib/dpkg/status.d/libc6": "Package: libc6\nSource: glibc\nArchitecture: arm64\nVersion: 2.41-12+deb13u4\n",
    "var/lib/dpkg/status.d/libc6.md5sums": "",
    "var/lib/dpkg/status.d/zlib1g": "Package: zlib1g\nSource: zlib (1:1.3)\nArchitecture: arm64\nVersion: 1:1.3+b1\n",
}
DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root directory of an image."""
    write_files(tmp_path, FILES)
    return tmp_path


def test_document_is_valid_and_about_the_image_and_its_digest(root: Path) -> None:
    text = sbom.document(root, "arm64", DIGEST, 1000)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    metadata = json.loads(text)["metadata"]
    assert metadata["timestamp"].startswith("1970-01-01T00:16:40")
    assert metadata["component"]["version"] == __version__
    assert metadata["component"]["hashes"] == [{"alg": "SHA-256", "content": "0" * 64}]


def test_packages_have_their_licenses_and_are_named_as_scanners_know_them(root: Path) -> None:
    listed = {
        each["purl"]: each.get("licenses") for each in json.loads(sbom.document(root, "arm64", DIGEST, 1))["components"]
    }
    assert listed == {
        "pkg:deb/debian/libc6@2.41-12%2Bdeb13u4?arch=arm64&distro=debian-13&upstream=glibc%402.41-12%2Bdeb13u4": None,
        "pkg:deb/debian/zlib1g@1:1.3%2Bb1?arch=arm64&distro=debian-13&upstream=zlib%401:1.3": None,
        "pkg:pypi/aosp-device-plugin@1.2.3": None,
        "pkg:pypi/both-names@1": [{"expression": "MIT OR Apache-2.0"}],
        "pkg:pypi/old@1": [{"license": {"name": "Python Software Foundation License"}}],
        "pkg:pypi/pyyaml@6.0": [{"license": {"name": "MIT"}}],
    }
