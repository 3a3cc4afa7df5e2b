"""Which names of resources a kubelet takes."""

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
def test_a_name_in_a_domain_of_its_own_is_taken(name: str) -> None:
    """A DNS subdomain, a slash, and up to 63 letters, digits, '-', '_' and '.'."""
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
def test_any_other_name_is_refused(name: str) -> None:
    """Kubernetes keeps its own domain, quotas put 'requests.' in front, and the rest has the wrong form."""
    assert not is_extended_resource_name(name)


def test_the_longest_domain_leaves_room_for_a_quota_s_prefix() -> None:
    """The table above is about 244 characters and one more."""
    assert len(DOMAIN_244) + len("requests.") == 253
