"""Names of extended resources that a kubelet accepts."""

from __future__ import annotations

import pytest

from aosp_plugin.framework.resource_names import is_extended_resource_name

LABEL = "a" * 63
DOMAIN_244 = ".".join([LABEL, LABEL, LABEL, "b" * 52])


@pytest.mark.parametrize(
    "name",
    [
        "aosp.io/binder",
        "example.com/gpu",
        "a/b",
        "a-b.c-d/e-f_g.H",
        "0/0",
        "1.2/3",
        "a.io/" + "x" * 63,
        f"{DOMAIN_244}/binder",
        "requests/binder",
        "kubernetes.io.example.com/binder",
        "aosp.io/kubernetes.io",
    ],
)
def test_name_in_another_domain_is_valid(name: str) -> None:
    assert is_extended_resource_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "binder",
        "/binder",
        "aosp.io/",
        "aosp.io/a/b",
        "kubernetes.io/binder",
        "sub.kubernetes.io/binder",
        "requests.aosp.io/binder",
        "Aosp.io/binder",
        "aosp_io/binder",
        "-aosp.io/binder",
        "aosp-/binder",
        "aosp..io/binder",
        ".aosp/binder",
        "aosp./binder",
        "aosp.io/-binder",
        "aosp.io/binder-",
        "aosp.io/.binder",
        "aosp.io/bin der",
        "aosp.io/binder\n",
        "aosp.io\n/binder",
        "aosp.io/ключ",
        "a.io/" + "x" * 64,
        f"{DOMAIN_244}b/binder",
    ],
)
def test_other_names_are_invalid(name: str) -> None:
    assert not is_extended_resource_name(name)


def test_longest_domain_leaves_room_for_the_quota_prefix() -> None:
    assert len(DOMAIN_244) + len("requests.") == 253
