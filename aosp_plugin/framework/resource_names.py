"""Names of extended resources, and of the sockets of their plugins."""

from __future__ import annotations

import re

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_QUOTA_PREFIX = "requests."
_MAX_DOMAIN_LENGTH = 253
_MAX_NAME_LENGTH = 63

MAX_STEM_LENGTH = 40
"""Characters of a socket's name that come from the resource's name."""


def is_extended_resource_name(name: str) -> bool:
    """Return whether a kubelet accepts a resource of this name, such as ``example.com/gpu``.

    pkg/apis/core/v1/helper/helpers.go ``IsExtendedResourceName``: a name in a domain outside kubernetes.io that is
    still a qualified name after a quota has put ``requests.`` in front, which leaves 244 characters for the domain.
    """
    domain, slash, rest = name.partition("/")
    return (
        bool(slash)
        and "kubernetes.io/" not in name
        and not name.startswith(_QUOTA_PREFIX)
        and len(_QUOTA_PREFIX + domain) <= _MAX_DOMAIN_LENGTH
        and _DOMAIN.fullmatch(domain) is not None
        and len(rest) <= _MAX_NAME_LENGTH
        and _NAME.fullmatch(rest) is not None
    )


def socket_name(resource_name: str) -> str:
    """Return the prefix of the names of a resource's sockets.

    A resource name may have 308 characters and a socket's path 107 bytes, of which the kubelet's directory and the
    numbers take 62. A long name is therefore cut, and a digest of the whole name is added.
    """
    name = resource_name.replace("/", "_")
    if len(name) > MAX_STEM_LENGTH:
        import hashlib  # noqa: PLC0415 - loads OpenSSL, and names are rarely long

        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: MAX_STEM_LENGTH - 9]}-{digest}"
    return f"aosp-{name}"
