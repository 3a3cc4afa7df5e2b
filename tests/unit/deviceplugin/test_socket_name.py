"""The names of the sockets of a resource."""

from __future__ import annotations

import os

from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.sockets import MAX_SOCKET_PATH, plugin_stem

LONGEST = f"{'d' * 63}.{'d' * 63}.{'d' * 63}.{'d' * 52}/{'n' * 63}"


def test_socket_name_contains_the_resource_name() -> None:
    assert plugin_stem("aosp.io/binder") == "aosp-aosp.io_binder"


def test_socket_path_of_the_longest_resource_name_is_valid() -> None:
    """It leaves room for the largest process ID and a number."""
    path = os.path.join(KUBELET_DIRECTORY, f"{plugin_stem(LONGEST)}-4194304-1795243435980.sock")
    assert len(path) <= MAX_SOCKET_PATH


def test_truncated_socket_names_are_unique() -> None:
    assert plugin_stem(LONGEST) != plugin_stem(LONGEST + "m")
