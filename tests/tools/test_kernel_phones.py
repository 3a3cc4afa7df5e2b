"""tests/e2e/kernel: what the items expect of a kernel, by its release."""

from __future__ import annotations

import pytest

from tests.e2e.kernel import phones


@pytest.mark.parametrize(
    ("release", "features"),
    [
        ("5.10.0-35-amd64", False),
        ("5.14.21", False),
        ("5.15.0-1-amd64", True),
        ("6.1.0-56-amd64", True),
        ("7.2+deb14-amd64", True),
    ],
)
def test_a_binderfs_has_the_directory_features_since_linux_5_15(release: str, *, features: bool) -> None:
    names = phones.files(release).split(",")
    assert ("features" in names) == features
    assert {*names} - {"features"} == {"binder", "binder-control", "hwbinder", "vndbinder"}
