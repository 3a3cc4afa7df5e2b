"""What Register checks of a request."""

from __future__ import annotations

from aosp_plugin.testing.names import registration_error


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
