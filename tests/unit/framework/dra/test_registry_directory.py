"""The names of a DRA driver's sockets in the kubelet's directory: short enough for each kubelet."""

import os

import pytest

from aosp_plugin.framework.dra.kubelet_service import RegistryDirectory
from aosp_plugin.framework.dra.slices import MAX_DRIVER_NAME_LENGTH
from aosp_plugin.framework.errors import KubeletDirectoryError
from aosp_plugin.framework.sockets import MAX_SOCKET_PATH
from tests.layouts import LAYOUTS, Layout

LONGEST = "d" * (MAX_DRIVER_NAME_LENGTH - 12) + ".example.com"
DRIVERS = ("a.b", "phone.aosp.io", "android-phone.example.com", LONGEST)
LARGEST_PID = 4_194_304
"""PID_MAX_LIMIT (include/linux/threads.h)."""


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("pid", [1, LARGEST_PID])
def test_path_of_a_socket_fits_on_each_distribution(
    monkeypatch: pytest.MonkeyPatch, layout: Layout, driver: str, pid: int
) -> None:
    """Also with the dot of a socket that does not serve yet."""
    monkeypatch.setattr(os, "getpid", lambda: pid)
    directory = RegistryDirectory(f"{layout.root}/plugins_registry", driver)
    endpoint = directory.next_endpoint(4_000_000_000.0)
    assert len(f"{directory.path}/.{endpoint}") <= MAX_SOCKET_PATH
    assert len(f".{endpoint}") == len(directory.longest_name)


def test_drivers_have_sockets_of_their_own() -> None:
    names = [*DRIVERS, *(f"{LONGEST}{suffix}" for suffix in "ab")]
    stems = {RegistryDirectory("/x", name).next_endpoint(1.0).split("-1000")[0] for name in names}
    assert len(stems) == len(names)


def test_path_too_long_for_a_socket_is_an_error(kubelet_dir: str) -> None:
    name = RegistryDirectory(kubelet_dir, LONGEST).longest_name
    path = f"{kubelet_dir}/{'d' * (MAX_SOCKET_PATH - len(kubelet_dir) - 1 - len(name))}"
    os.mkdir(path)
    with pytest.raises(KubeletDirectoryError, match=f" {path} would have a path of 108 bytes, and the limit is 107: "):
        RegistryDirectory(path, LONGEST).check()
