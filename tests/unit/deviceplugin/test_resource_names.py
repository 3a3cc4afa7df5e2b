"""Names of extended resources that a kubelet accepts."""

from __future__ import annotations

import pytest

from aosp_plugin.framework.devices import is_extended_resource_name

LABEL = "a" * 63
DOMAIN_244 = ".".join([LABEL, LABEL, LABEL, "b" * 52])
"""The longest domain that leaves room for the prefix "requests." of a quota."""


@pytest.mark.parametrize("domain", ["a", "a-b.c-d", "1.2", DOMAIN_244, "requests", "kubernetes.io.example.com"])
@pytest.mark.parametrize("name", ["binder", "0", "e-f_g.H", "kubernetes.io", "x" * 63])
def test_name_in_another_domain_is_valid(domain: str, name: str) -> None:
    assert is_extended_resource_name(f"{domain}/{name}")


@pytest.mark.parametrize(
    "domain",
    ["", "kubernetes.io", "sub.kubernetes.io", "requests.a.io", "A.io", "a_b.io", "-a.io", "a..io", f"{DOMAIN_244}b"],
)
def test_reserved_and_malformed_domains_are_invalid(domain: str) -> None:
    assert not is_extended_resource_name(f"{domain}/binder")
    assert not is_extended_resource_name(domain)


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a-", ".a", "a b", "a\n", "ключ", "x" * 64])
def test_malformed_names_are_invalid(name: str) -> None:
    assert not is_extended_resource_name(f"aosp.io/{name}")
