"""Names of extended resources that a kubelet accepts, and of the sockets of a resource."""

from aosp_plugin import SOCKET_PREFIX
from aosp_plugin.framework.backend import is_extended_resource_name
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.sockets import MAX_SOCKET_PATH, PluginDirectory

LABEL = "a" * 63
DOMAIN_244 = ".".join([LABEL, LABEL, LABEL, "b" * 52])
"""The longest domain that leaves room for the prefix "requests." of a quota."""


def test_name_in_another_domain_than_those_of_kubernetes_is_valid() -> None:
    for domain in ("a", "a-b.c-d", "1.2", DOMAIN_244, "requests", "kubernetes.io.example.com"):
        assert is_extended_resource_name(f"{domain}/binder")
    for name in ("0", "e-f_g.H", "x" * 63):
        assert is_extended_resource_name(f"a.io/{name}")
    for domain in ("", "kubernetes.io", "sub.kubernetes.io", "requests.a.io", "A.io", "a..io", f"{DOMAIN_244}b"):
        assert not is_extended_resource_name(f"{domain}/binder")
        assert not is_extended_resource_name(domain)
    for name in ("", "a/b", "-a", "a.", "a\n", "ключ", "x" * 64):
        assert not is_extended_resource_name(f"aosp.io/{name}")


def test_socket_name_contains_the_resource_name() -> None:
    """The path of the longest one leaves room for the largest process ID and a number, and is unique."""
    binder, longest, other = (
        PluginDirectory(KUBELET_DIRECTORY, name, SOCKET_PREFIX)
        for name in ("aosp.io/binder", f"{DOMAIN_244}/{'n' * 63}", f"{DOMAIN_244}/{'n' * 62}m")
    )
    assert binder.stem == "aosp-aosp.io_binder"
    assert len(f"{longest.path}/.{longest.stem}-4194304-1795243435980.sock") <= MAX_SOCKET_PATH
    assert longest.stem != other.stem
