"""What the sockets of a resource are called."""

from __future__ import annotations

import os

from aosp_plugin.framework.deviceplugin.kubelet_client import LONGEST_SOCKET_PATH
from aosp_plugin.framework.deviceplugin.plugin import KUBELET_DIRECTORY
from aosp_plugin.framework.resource_names import socket_name

LONGEST = f"{'d' * 63}.{'d' * 63}.{'d' * 63}.{'d' * 52}/{'n' * 63}"


def test_a_socket_is_named_after_its_resource() -> None:
    """Whoever looks into the kubelet's directory sees whose socket it is."""
    assert socket_name("aosp.io/binder") == "aosp-aosp.io_binder"


def test_the_longest_name_still_makes_a_socket() -> None:
    """With the longest resource name, process ID and number, the path fits into a socket's address."""
    path = os.path.join(KUBELET_DIRECTORY, f"{socket_name(LONGEST)}-4194304-1795243435980.sock")
    assert len(path) <= LONGEST_SOCKET_PATH


def test_long_names_that_begin_alike_differ() -> None:
    """Two resources never sweep away each other's sockets."""
    assert socket_name(LONGEST) != socket_name(LONGEST + "m")
    assert socket_name(LONGEST) == socket_name(LONGEST)
