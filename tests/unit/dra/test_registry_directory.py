"""The names of a DRA driver's sockets in the kubelet's directory."""

from __future__ import annotations

import os

from aosp_plugin.framework.dra.driver_names import MAX_DRIVER_NAME_LENGTH
from aosp_plugin.framework.sockets import MAX_SOCKET_PATH, SocketDirectory, socket_stem

LONGEST = "d" * (MAX_DRIVER_NAME_LENGTH - 12) + ".example.com"


def test_socket_has_the_name_of_the_driver() -> None:
    name = SocketDirectory("/x", socket_stem("phone.example.com")).next_endpoint(1700000000.5)
    assert name == f"phone.example.com-{os.getpid()}-1700000000500.sock"


def test_longest_path_of_a_kubelet_fits() -> None:
    """Also with the dot of a socket that does not serve yet."""
    directory = SocketDirectory("/var/lib/kubelet/plugins_registry", socket_stem(LONGEST))
    assert len(LONGEST) == MAX_DRIVER_NAME_LENGTH
    assert len(f"{directory.path}/{directory.longest_name}") <= MAX_SOCKET_PATH
    assert len(f".{directory.next_endpoint(10**10)}") <= len(directory.longest_name)


def test_drivers_with_long_names_have_sockets_of_their_own(kubelet_dir: str) -> None:
    other = LONGEST.replace("d.example", "e.example")
    names = {SocketDirectory(kubelet_dir, socket_stem(driver)).next_endpoint(0.0) for driver in (LONGEST, other)}
    assert len(names) == 2
