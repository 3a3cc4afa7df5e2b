"""What the kubelet's Register checks before it looks at a plugin at all. Pure."""

from __future__ import annotations

from typing import Final

from aosp_plugin.framework.resource_names import is_extended_resource_name

SUPPORTED_VERSION: Final = "v1beta1"


def registration_error(version: str, resource_name: str) -> str | None:
    """Return what Register answers to a bad request, word for word, or None for a good one.

    The version is tested first (pkg/kubelet/cm/devicemanager/types.go and manager.go, Register).
    """
    if version != SUPPORTED_VERSION:
        return (
            f'requested API version "{version}" is not supported by kubelet. '
            f'Supported version is ["{SUPPORTED_VERSION}"]'
        )
    if not is_extended_resource_name(resource_name):
        return f'the ResourceName "{resource_name}" is invalid'
    return None
