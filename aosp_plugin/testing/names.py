"""What the kubelet's Register checks before it looks at a plugin at all. Pure."""

from __future__ import annotations

import re
from typing import Final

SUPPORTED_VERSION: Final = "v1beta1"

_DEFAULT_NAMESPACE: Final = "kubernetes.io/"
_QUOTA_PREFIX: Final = "requests."
_MAX_DOMAIN: Final = 253
_MAX_NAME: Final = 63
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def is_extended_resource_name(name: str) -> bool:
    """Whether a resource of this name may be registered, for example ``example.com/gpu``.

    pkg/apis/core/v1/helper/helpers.go, IsExtendedResourceName: a name of its own domain, which stays valid
    when a quota puts ``requests.`` before it (so 244 characters are left for the domain).
    """
    if "/" not in name or _DEFAULT_NAMESPACE in name or name.startswith(_QUOTA_PREFIX):
        return False
    return _is_qualified_name(_QUOTA_PREFIX + name)


def _is_qualified_name(name: str) -> bool:
    """Whether it is a ``domain/name`` as apimachinery's validation.go takes it."""
    domain, _, rest = name.partition("/")
    return (
        len(domain) <= _MAX_DOMAIN
        and _DOMAIN.fullmatch(domain) is not None
        and 0 < len(rest) <= _MAX_NAME
        and _NAME.fullmatch(rest) is not None
    )


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
