"""The names of a DRA driver's sockets in the kubelet's directory."""

from __future__ import annotations

from aosp_plugin.framework.dra.driver_names import MAX_DRIVER_NAME_LENGTH
from aosp_plugin.framework.sockets import MAX_SOCKET_PATH, SocketDirectory, socket_stem

LONGEST = "d" * (MAX_DRIVER_NAME_LENGTH - 12) + ".example.com"


def test_longest_path_of_a_kubelet_fits() -> None:
    """Also with the dot of a socket that does not serve yet."""
    directory = SocketDirectory("/var/lib/kubelet/plugins_registry", socket_stem(LONGEST))
    assert len(LONGEST) == MAX_DRIVER_NAME_LENGTH
    assert len(f"{directory.path}/{directory.longest_name}") <= MAX_SOCKET_PATH
    assert len(f".{directory.next_endpoint(10**10)}") <= len(directory.longest_name)
