"""Which names a resource may have."""

from __future__ import annotations

import re

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_QUOTA_PREFIX = "requests."
_LONGEST_DOMAIN = 253
_LONGEST_NAME = 63


def is_extended_resource_name(name: str) -> bool:
    """Say whether a kubelet takes a resource of this name, for example ``example.com/gpu``.

    pkg/apis/core/v1/helper/helpers.go ``IsExtendedResourceName``: a name in a domain of its own, which is still a
    qualified name when a quota puts ``requests.`` before it (so that 244 characters are left for the domain).
    """
    domain, slash, rest = name.partition("/")
    return (
        bool(slash)
        and "kubernetes.io/" not in name
        and not name.startswith(_QUOTA_PREFIX)
        and len(_QUOTA_PREFIX + domain) <= _LONGEST_DOMAIN
        and _DOMAIN.fullmatch(domain) is not None
        and len(rest) <= _LONGEST_NAME
        and _NAME.fullmatch(rest) is not None
    )
