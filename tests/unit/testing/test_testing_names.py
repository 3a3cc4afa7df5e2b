"""What Register checks of a request."""

from __future__ import annotations

import pytest

from aosp_plugin.testing.names import is_extended_resource_name, registration_error

LONGEST_DOMAIN = ".".join(["a" * 60] * 4)  # 243 characters, and "requests." before it makes 252


@pytest.mark.parametrize(
    "name",
    [
        "example.com/gpu",
        "e/G-p_u.2",
        "a-1.b/0",
        f"x{LONGEST_DOMAIN}/gpu",
        f"example.com/{'a' * 63}",
    ],
)
def test_a_name_of_its_own_domain_is_taken(name: str) -> None:
    """A domain of up to 244 characters and a name of up to 63 make an extended resource."""
    assert is_extended_resource_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu",
        "/gpu",
        "example.com/",
        "example.com/a/b",
        "kubernetes.io/gpu",
        "x.kubernetes.io/gpu",
        "example.com/kubernetes.io/",
        "requests.example.com/gpu",
        "Example.com/gpu",
        "example..com/gpu",
        "-example.com/gpu",
        "example-.com/gpu",
        "example.com/-gpu",
        "example.com/gpu-",
        "example.com/g pu",
        "example.com/gpu\n",
        "example.com\n/gpu",
        f"xx{LONGEST_DOMAIN}/gpu",
        f"example.com/{'a' * 64}",
    ],
)
def test_any_other_name_is_refused(name: str) -> None:
    """No domain, the kubelet's own domain, a quota's prefix, or a character out of place: no extended resource."""
    assert not is_extended_resource_name(name)


def test_a_good_request_has_no_error() -> None:
    """The only version there is, and a good name."""
    assert registration_error("v1beta1", "example.com/gpu") is None


def test_the_version_is_tested_before_the_name() -> None:
    """A request that is wrong in both ways hears of its version, in the kubelet's words."""
    assert registration_error("v1alpha1", "foo") == (
        'requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]'
    )


def test_a_bad_name_is_quoted() -> None:
    """The kubelet's words for a bad name."""
    assert registration_error("v1beta1", "foo") == 'the ResourceName "foo" is invalid'
