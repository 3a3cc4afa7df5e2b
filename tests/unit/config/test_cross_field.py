"""Conflicts between keys of a resource, and between resources."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.config import Provision, Recreate, load, status_address
from aosp_plugin.errors import ConfigError
from tests.unit.config.tables import loaded, write

if TYPE_CHECKING:
    from pathlib import Path


def test_recreate_requires_one_replica(file: Path) -> None:
    """The effective values are compared: a variable can cause the conflict, and can resolve it."""
    path = write(file, "version: v1\nrecreate: on-start\n")
    error = (
        rf"^variable AOSP_PLUGIN_REPLICAS: 2 replicas require recreate: never, not on-start \(file {file}: recreate\)"
    )
    with pytest.raises(ConfigError, match=error):
        load({}, {"AOSP_PLUGIN_REPLICAS": "2"}, path)
    path = write(file, "version: v1\nrecreate: on-start\nreplicas: 2\n")
    assert load({}, {"AOSP_PLUGIN_RECREATE": "never"}, path)[0].resources[0].replicas == 2
    assert load({}, {"AOSP_PLUGIN_REPLICAS": "1"}, path)[0].resources[0].recreate is Recreate.ON_START


@pytest.mark.parametrize(
    ("listen", "status_listen"),
    [
        ("0.0.0.0:9478", None),
        ("[::]:9478", None),
        ("0.0.0.0:80", "10.1.2.3:80"),
        ("10.1.2.3:80", "0.0.0.0:80"),
        ("[fd00::1]:80", "[::]:80"),
        ("0.0.0.0:80", "[::]:80"),
        ("0.0.0.0:80", "localhost:80"),
    ],
)
def test_wildcard_address_has_the_port_of_the_status_as_well(
    listen: str, status_listen: str | None, file: Path
) -> None:
    text = f"listen: '{listen}'" + (f"\nstatus_listen: '{status_listen}'" if status_listen else "")
    where = f"; file {file}: status_listen" if status_listen else ""
    error = rf"^file {file}: listen{where}: the page and /status cannot have the address \S+ beside \S+ \(listen\): set"
    with pytest.raises(ConfigError, match=error):
        loaded(file, text)


@pytest.mark.parametrize(
    ("listen", "status_listen", "address"),
    [
        ("127.0.0.1:80", None, ("127.0.0.1", 80)),
        ("localhost:80", None, ("localhost", 80)),
        ("[::1]:80", None, ("::1", 80)),
        ("10.1.2.3:80", None, ("127.0.0.1", 80)),
        ("", None, None),
        ("10.1.2.3:80", "", None),
        ("10.1.2.3:80", "10.1.2.3:80", ("10.1.2.3", 80)),
        ("0.0.0.0:80", "", None),
        ("0.0.0.0:80", "0.0.0.0:80", ("0.0.0.0", 80)),  # noqa: S104
        ("0.0.0.0:80", "127.0.0.1:81", ("127.0.0.1", 81)),
        ("0.0.0.0:80", "[::1]:80", ("::1", 80)),
        ("0.0.0.0:0", None, ("127.0.0.1", 0)),
        ("", "127.0.0.1:81", ("127.0.0.1", 81)),
    ],
)
def test_status_is_on_loopback_unless_configured(
    listen: str, status_listen: str | None, address: tuple[str, int] | None, file: Path
) -> None:
    text = f"listen: '{listen}'" + ("" if status_listen is None else f"\nstatus_listen: '{status_listen}'")
    assert status_address(loaded(file, text)) == address


def test_provisioned_devices_require_numbered_sets(file: Path) -> None:
    error = r"resources\[0\].provision: provisioned binder devices have numbers, .* names \(file .*: sets\)"
    with pytest.raises(ConfigError, match=error):
        loaded(file, "sets: {names: [binder]}\nresources: [{provision: {count: 3}}]")
    assert loaded(file, "sets: {size: 3}\nprovision: {count: 3}").resources[0].provision == Provision(count=3)


@pytest.mark.parametrize("directory", ["/dev", "/dev/binderfs", "//dev/./x/", "/run/../dev/x"])
def test_provisioned_devices_are_not_below_dev(directory: str, file: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"^file {file}: provision.directory: '{re.escape(directory)}' is not allowed: "
    ):
        loaded(file, f"provision: {{count: 3, directory: {directory}}}")
    assert loaded(file, "provision: {count: 3, directory: /devices}").resources[0].scan_directory == "/devices"


def test_device_directory_has_no_effect_on_provisioned_devices(file: Path) -> None:
    """The default is no contradiction: `aosp-plugin config` prints it. Another resource may have a directory."""
    error = "device_dir: device_dir has no effect with provision .*, whose binder devices are in /run/aosp-binderfs/dev"
    with pytest.raises(ConfigError, match=f"^file {file}: {error}"):
        loaded(file, "device_dir: /srv\nprovision: {count: 3}")
    with pytest.raises(ConfigError, match=r"^flag --device-dir: device_dir has no effect"):
        load({"device_dir": "/srv"}, {}, write(file, "version: v1\nprovision: {count: 3}\n"))
    assert loaded(file, "device_dir: /dev/\nprovision: {count: 3}").resources[0].provision
    resources = "[{provision: {count: 3}}, {resource_name: a.io/b, device_dir: /srv}]"
    assert len(loaded(file, f"resources: {resources}").resources) == 2


def test_provisioned_devices_have_valid_names(file: Path) -> None:
    """The last name is the longest one."""
    text = f"device_prefix: {'x' * 61}\nprovision: {{count: 91, first: %d}}"
    assert loaded(file, text % 9).resources[0].device_prefix == "x" * 61
    with pytest.raises(
        ConfigError, match=f"^file {file}: provision: 'x+100' is not a valid device name .* at most 63$"
    ):
        loaded(file, text % 10)


def test_names_of_a_set_require_an_unambiguous_pattern(file: Path) -> None:
    with pytest.raises(ConfigError, match=f"^file {file}: sets: "):
        loaded(file, "sets: {names: [binder, hwbinder], pattern: '{set}{name}'}")


def test_cdi_requires_a_valid_kind(file: Path) -> None:
    with pytest.raises(ConfigError, match=f"device_list: the resource name 'a.io/x' is not a valid CDI kind .*{file}"):
        loaded(file, "device_list: [cdi-cri]\nresource_name: a.io/x")


@pytest.mark.parametrize(("limit", "needed"), [(1, 2), (9, 10)])
def test_binderfs_requires_capacity_for_one_more_device(limit: int, needed: int, file: Path) -> None:
    error = f"provision: max {limit} is too small for the binderfs /run.*; allowed: {needed} or more, or no max$"
    with pytest.raises(ConfigError, match=error):
        loaded(file, f"provision: {{count: {limit}, max: {limit}}}")
    assert len(loaded(file, f"provision: {{count: {limit}, max: {needed}}}").resources) == 1


TWO = "resources:\n- {resource_name: a.io/x, device_prefix: x, provision: %s}\n- {device_prefix: y, provision: %s}"


def test_resources_that_share_a_binderfs_share_its_capacity(file: Path) -> None:
    assert len(loaded(file, TWO % ("{count: 4, max: 10}", "{count: 5, max: 10}")).resources) == 2
    with pytest.raises(
        ConfigError, match=r"resources\[0\].provision; file .*: resources\[1\].provision: max 10 is too"
    ):
        loaded(file, TWO % ("{count: 5, max: 10}", "{count: 5, max: 10}"))
    for other in ("{count: 4}", "{count: 4, max: 99, directory: //run/aosp-binderfs/devices/}"):
        with pytest.raises(ConfigError, match="the binderfs /run/aosp-binderfs/devices has one max; set it in each"):
            loaded(file, TWO % ("{count: 5, max: 10}", other))
    assert len(loaded(file, TWO % ("{count: 5, max: 6}", "{count: 5, directory: /x}")).resources) == 2


def test_two_resources_require_different_names(file: Path) -> None:
    """A flag that sets the name applies to both resources."""
    text = "resources:\n- {resource_name: a.io/x, device_prefix: x}\n- {device_prefix: y%s}\n"
    assert len(loaded(file, text % "").resources) == 2
    with pytest.raises(ConfigError) as raised:
        loaded(file, text % ", resource_name: a.io/x")
    assert str(raised.value) == (
        f"file {file}: resources[0] and resources[1]: both have the resource_name 'a.io/x' (file {file}: "
        f"resources[0].resource_name; file {file}: resources[1].resource_name); give each its own"
    )
    path = write(file, f"version: v1\n{text % ''}")
    with pytest.raises(ConfigError, match=r"both have the resource_name 'b.io/z' \(flag --resource-name\); give each"):
        load({"resource_name": "b.io/z"}, {}, path)


@pytest.mark.parametrize(
    ("first", "second", "devices"),
    [
        ("{}", "{}", "aosp_binder* in /dev"),
        ("{device_prefix: aosp}", "{}", "aosp_binder* in /dev"),
        ("{device_prefix: x}", "{device_prefix: x_}", "x_* in /dev"),
        ("{device_dir: /a/b}", "{device_dir: //a/./c/../b/}", "aosp_binder* in /a/b"),
        ("{provision: {count: 1}}", "{provision: {count: 1}}", "aosp_binder* in /run/aosp-binderfs/devices"),
        ("{provision: {count: 1, directory: /d}}", "{device_dir: /d}", "aosp_binder* in /d"),
    ],
)
def test_two_resources_require_different_devices(first: str, second: str, devices: str, file: Path) -> None:
    """The order of the resources does not matter."""
    text = "resources:\n- {resource_name: a.io/x, %s\n- {resource_name: a.io/y, %s"
    for pair in ((first, second), (second, first)):
        with pytest.raises(ConfigError) as raised:
            loaded(file, text % tuple(entry[1:] for entry in pair))
        assert str(raised.value).startswith(
            f"file {file}: resources[0] and resources[1]: a.io/x and a.io/y both match {devices} ("
        )


def test_every_pair_of_resources_is_compared(file: Path) -> None:
    text = "resources:\n- {device_prefix: x}\n- {resource_name: a.io/y, device_prefix: y}\n- {resource_name: a.io/z%s}"
    assert len(loaded(file, text % "").resources) == 3
    error = re.escape("resources[0] and resources[2]: aosp.io/binder and a.io/z both match x1* in /dev")
    with pytest.raises(ConfigError, match=error):
        loaded(file, text % ", device_prefix: x1")


@pytest.mark.parametrize(
    "second",
    [
        "device_prefix: aosp_bindex",
        "device_prefix: hwaosp_binder",
        "device_dir: /dev/binderfs",
        "provision: {count: 1}",
        "sets: {names: [binder]}",
    ],
)
def test_two_resources_can_differ_in_prefix_or_directory(second: str, file: Path) -> None:
    """The names of a set have no prefix."""
    assert (
        len(loaded(file, f"resources: [{{resource_name: a.io/x}}, {{resource_name: a.io/y, {second}}}]").resources) == 2
    )
