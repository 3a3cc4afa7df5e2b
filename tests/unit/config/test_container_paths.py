"""Container paths that the kubelet or the runtime would drop, refuse or hide are errors, with the key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.errors import ConfigError
from tests.unit.config.tables import loaded

if TYPE_CHECKING:
    from pathlib import Path

RESERVED = [
    *("/", "//", "/dev", "/dev/", "/dev/..", "/proc", "/proc/self", "/sys", "/sys/fs", "/sys/fs/cgroup/unit", "/etc"),
    *("/dev/null", "/dev/pts/0", "/dev/shm", "/dev/termination-log", "/dev/fd/3", "/etc/hosts", "/var/run/secrets"),
]


@pytest.mark.parametrize("path", RESERVED)
@pytest.mark.parametrize("key", ["container_paths", "shared_devices", "shared_mounts"])
def test_path_that_the_runtime_or_the_kubelet_provides_is_rejected(key: str, path: str, file: Path) -> None:
    text = path if key == "container_paths" else f"/host/x:{path}"
    error = r"the container path '/\S*' is not allowed: the container runtime or the kubelet provides /"
    with pytest.raises(ConfigError, match=f"^file {file}: {key}: {error}"):
        loaded(file, f"{key}: ['{text}']")


@pytest.mark.parametrize("path", ["/dev/nullx", "/dev/dri/null", "/sys/kernel/debug", "/procs", "/etc/phone"])
def test_other_paths_are_allowed(path: str, file: Path) -> None:
    for key, text in (("container_paths", path), ("shared_devices", path), ("shared_mounts", f"/proc:{path}")):
        assert getattr(loaded(file, f"{key}: ['{text}']").resources[0], key) == (text,)


@pytest.mark.parametrize(
    ("keys", "first", "second"),
    [
        ("container_paths: [/dev/binderfs]", "/dev/binderfs", "/dev/binderfs"),
        ("container_paths: [/dev/binderfs/binder]", "/dev/binderfs/binder", "/dev/binderfs"),
        ("container_paths: [/dev/ashmem]", "/dev/ashmem", "/dev/ashmem"),
        ("container_paths: [/dev//ashmem/.]", "/dev/ashmem", "/dev/ashmem"),
        ("container_paths: [/dev/a, /dev/a/b]", "/dev/a", "/dev/a/b"),
        ("shared_devices: [/dev/a, /dev/b:/dev/x/../a/]", "/dev/a", "/dev/a"),
        ("shared_devices: [/dev/fuse:/dev/binderfs/fuse]", "/dev/binderfs/fuse", "/dev/binderfs"),
        ("shared_mounts: [/a, /b:/a]", "/a", "/a"),
        ("shared_mounts: [/a:/x, /b:/x/b]", "/x", "/x/b"),
        ("shared_mounts: [binderfs:/b/c, /x:/b]", "/b/c", "/b"),
        ("shared_mounts: [/x:/opt]\ncontainer_paths: [/opt/binder]", "/opt/binder", "/opt"),
    ],
)
def test_paths_that_conflict_are_rejected(keys: str, first: str, second: str, file: Path) -> None:
    """They are the same, also in another spelling, or one lies in the other. The error names keys and paths."""
    keyed = [key for key in ("container_paths", "shared_devices", "shared_mounts") if f"{key}:" in keys]
    relation = "are the same" if first == second else "lie in each other"
    with pytest.raises(ConfigError) as raised:
        loaded(file, keys)
    assert str(raised.value).startswith(f"file {file}: {keyed[-1] if len(keyed) == 1 else 'container_paths'}")
    assert str(raised.value).endswith(f": the container paths '{first}' and '{second}' {relation}")


@pytest.mark.parametrize(
    ("keys", "devices"),
    [
        ("container_paths: [/dev/aosp_binder1]", "/dev/aosp_binderN"),
        ("container_paths: [//dev/./aosp_binder007]", "/dev/aosp_binderN"),
        ("shared_devices: [/dev/fuse:/dev/aosp_binder1]", "/dev/aosp_binderN"),
        ("shared_mounts: [/x:/dev/aosp_binder1/x]", "/dev/aosp_binderN"),
        ("device_prefix: binder\nsets: {size: 3}\ncontainer_paths: [/dev/binder0]", "/dev/binderN"),
        ("sets: {names: [binder]}\ncontainer_paths: [/dev/phone1/binder]", "/dev/{set}/{name}"),
        ("sets: {names: [binder]}\ncontainer_paths: [/dev/phone1/binder/x]", "/dev/{set}/{name}"),
        ("sets: {names: [binder], pattern: 'p{set}-{name}'}\ncontainer_paths: [/dev/p1-binder]", "/dev/p{set}-{name}"),
        ("provision: {count: 3}\nshared_mounts: [/x:/run/aosp-binderfs]", "/run/aosp-binderfs/devices"),
        ("device_dir: /srv/binders\ncontainer_paths: [/srv/binders/a]", "/srv/binders"),
    ],
)
def test_paths_of_the_binder_devices_themselves_are_rejected(keys: str, devices: str, file: Path) -> None:
    error = f"' is not allowed: containers have their binder devices at {re.escape(devices)}$"
    with pytest.raises(ConfigError, match=error):
        loaded(file, keys)


@pytest.mark.parametrize(
    "keys",
    [
        "device_prefix: binder\ncontainer_paths: [/dev/binder, /dev/hwbinder]",
        "sets: {names: [binder, hwbinder], pattern: '{set}/{name}'}\ncontainer_paths: [/dev/binder, /dev/hwbinder]",
        "sets: {names: [binder, hwbinder], pattern: '{name}{set}'}\ncontainer_paths: [/dev/binder, /dev/hwbinder]",
        "device_dir: /dev/binderfs\ndevice_prefix: binder\ncontainer_paths: [/dev/binder]",
        "isolation: strict\ncontainer_paths: [/dev/binderfs/binder]",
        "shared_mounts: [/a:/x, /b:/xy]",
        "shared_devices: [/dev/null:/dev/dri/card0, /dev/null:/dev/dri/card1]",
    ],
)
def test_paths_that_no_device_has_are_allowed(keys: str, file: Path) -> None:
    """Strict isolation shares no directory. A path may begin like another one."""
    assert loaded(file, keys).resources


@pytest.mark.parametrize("key", ["shared_devices", "spread_devices"])
@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("/dev/*", "the kubelet provides /dev/console"),
        ("/dev/t*", "the kubelet provides /dev/tty"),
        ("/dev/*/renderD*", "the kubelet provides /dev/console"),
        ("/*", "the kubelet provides /proc"),
        ("/proc/self/fd/*", "the kubelet provides /proc"),
        ("/sys/class/*", "no devices are below /sys"),
        ("/dev/dri/**", r"\*\* is not supported"),
        ("/dev/aosp_*", "containers have their binder devices at /dev/aosp_binderN"),
        ("/dev/binderfs/*", "'/dev/binderfs/\\*' and '/dev/binderfs' lie in each other"),
        ("/dev/hwbin?er", "'/dev/hwbinder' and '/dev/hwbin\\?er' overlap"),
    ],
)
def test_pattern_that_matches_other_paths_of_a_container_is_rejected(
    key: str, pattern: str, error: str, file: Path
) -> None:
    text = f"container_paths: [/dev/hwbinder]\n{key}: ['{pattern}']"
    with pytest.raises(ConfigError, match=f"{key}.*{error}") as raised:
        loaded(file, text)
    assert pattern in str(raised.value)


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ("shared_devices: ['/dev/dri/*:/dev/x']", "the pattern '/dev/dri/*' cannot have the container path '/dev/x'"),
        (
            "shared_devices: [{path: '/dev/a?', container_path: /dev/x}]",
            "the pattern '/dev/a?' cannot have the container",
        ),
        (
            "shared_devices: [/dev/dri/*]\nspread_devices: [/dev/dri/renderD*]",
            "the container paths '/dev/dri/*' and '/dev/dri/renderD*' overlap",
        ),
        (
            "shared_devices: [/dev/dri/card*, /dev/x:/dev/dri/card0]",
            "the container paths '/dev/dri/card*' and '/dev/dri/card0' overlap",
        ),
        (
            "shared_devices: [{path: /dev/a, container_path: /dev/b}, /dev/b]",
            "the container paths '/dev/b' and '/dev/b' are the same",
        ),
        ("shared_mounts: [/dev/dri]\nspread_devices: [/dev/dri/renderD*]", "and '/dev/dri' lie in each other"),
    ],
)
def test_device_that_two_paths_select_is_rejected(keys: str, error: str, file: Path) -> None:
    """A container would get a device of another phone, or one path for two devices."""
    with pytest.raises(ConfigError, match=re.escape(error)):
        loaded(file, keys)


def test_pattern_and_path_of_the_same_device_are_allowed(file: Path) -> None:
    """One of the matches may be required, or come first."""
    keys = "shared_devices: [/dev/dma_heap/*, {path: /dev/dma_heap/system, required: true}]"
    assert len(loaded(file, keys).resources[0].shared_devices) == 2
    keys = "spread_devices: [/dev/dri/renderD*, /dev/dri/renderD128, '/dev/dri/render[A-Z]*']"
    assert len(loaded(file, keys).resources[0].spread_devices) == 3


def test_each_resource_has_paths_of_its_own(file: Path) -> None:
    """The error names the resource; the same paths in two resources are no conflict."""
    text = "resources: [{container_paths: [/dev/x]}, {resource_name: a.io/b, device_prefix: b, container_paths: [%s]}]"
    assert len(loaded(file, text % "/dev/x").resources) == 2
    with pytest.raises(
        ConfigError, match=rf"^file {file}: resources\[1\].container_paths: the container path '/dev/b1'"
    ):
        loaded(file, text % "/dev/b1")
