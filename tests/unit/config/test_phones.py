"""The key ``phones``: the defaults that it changes, and conflicts with other keys and resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.config import Phones, ProvisionedBy, Recreate, load
from aosp_plugin.errors import ConfigError
from tests.unit.config.tables import loaded, write

if TYPE_CHECKING:
    from pathlib import Path


def test_a_count_of_phones_is_a_whole_configuration(file: Path) -> None:
    (resource,) = loaded(file, "phones: {count: 120}").resources
    assert resource.phones == Phones(count=120, directory="/run/aosp-binderfs/phones")
    assert resource.scan_directory == "/run/aosp-binderfs/phones"
    assert resource.resource_name == "aosp.io/phone"
    assert resource.verify is Verify.BINDER
    assert resource.recreate is Recreate.ON_START
    assert resource.container_paths == ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")


def test_values_that_are_set_take_precedence_over_the_defaults_with_phones(file: Path) -> None:
    path = write(file, "version: v1\nphones: {count: 1}\nverify: probe\nrecreate: on-start\n")
    config, settings = load({"resource_name": "a.io/x"}, {"AOSP_PLUGIN_RECREATE": "never"}, path)
    (resource,) = config.resources
    assert (resource.resource_name, resource.verify) == ("a.io/x", Verify.PROBE)
    assert resource.recreate is Recreate.NEVER
    assert settings["container_paths"].source == "default with phones"


def test_replicas_of_phones_require_that_recreation_is_off(file: Path) -> None:
    error = rf"^file {file}: replicas: 2 replicas require recreate: never, not on-start \(default with phones\): "
    with pytest.raises(ConfigError, match=error):
        loaded(file, "phones: {count: 1}\nreplicas: 2")
    assert loaded(file, "phones: {count: 1}\nreplicas: 2\nrecreate: never").resources[0].replicas == 2


def test_phones_of_the_command_are_not_recreated_by_default(file: Path) -> None:
    text = "provisioned_by: command\nresources: [{phones: {count: 1}}, {device_prefix: x, provision: {count: 1}}]"
    first, second = loaded(file, text).resources
    assert (first.provisioned_by, first.recreate, first.verify) == (
        ProvisionedBy.COMMAND,
        Recreate.NEVER,
        Verify.BINDER,
    )
    assert (second.provisioned_by, second.recreate) == (ProvisionedBy.COMMAND, Recreate.NEVER)
    _, settings = load({}, {"AOSP_PLUGIN_PROVISIONED_BY": "command"}, write(file, "version: v1\nphones: {count: 1}\n"))
    assert settings["recreate"].source == "default with provisioned_by: command"


@pytest.mark.parametrize("other", ["recreate: on-start", "api: dra"])
def test_a_plugin_that_must_not_mount_phones_cannot_mount_them_later(other: str, file: Path) -> None:
    error = (
        rf"^file {file}: provisioned_by: command is not possible with {other} \(.*\): the plugin mounts a phone "
        "when .*; use provisioned_by: plugin$"
    )
    with pytest.raises(ConfigError, match=error):
        loaded(file, f"provisioned_by: command\nphones: {{count: 1}}\n{other}")
    loaded(file, f"provisioned_by: command\n{other}")


def test_only_the_resource_with_phones_has_their_defaults(file: Path) -> None:
    first, second = loaded(file, "resources: [{phones: {count: 1}}, {device_prefix: x}]").resources
    assert (first.resource_name, first.recreate) == ("aosp.io/phone", Recreate.ON_START)
    assert (second.resource_name, second.recreate, second.container_paths) == ("aosp.io/binder", Recreate.NEVER, ())


@pytest.mark.parametrize(
    "other",
    ["device_dir: /srv", "device_prefix: x", "sets: {size: 3}", "provision: {count: 3}"],
)
def test_keys_about_other_binder_devices_have_no_effect_with_phones(other: str, file: Path) -> None:
    name = other.partition(":")[0]
    error = (
        rf"^file {file}: {name}: {name} has no effect with phones \(file {file}: phones\), .*: remove one of the two"
    )
    with pytest.raises(ConfigError, match=error):
        loaded(file, f"phones: {{count: 1}}\n{other}")


@pytest.mark.parametrize("directory", ["/dev", "/dev/phones", "//dev/../dev/x", "/"])
def test_phones_are_not_below_dev(directory: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^file {file}: phones.directory: '{directory}' is not allowed: "):
        loaded(file, f"phones: {{count: 1, directory: {directory}}}")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("phones: {count: 1}", "phones: {count: 1}"),
        ("phones: {count: 1, directory: /srv/a}", "phones: {count: 1, directory: /srv/a/b}"),
        ("phones: {count: 1, directory: /srv}", "device_dir: /srv/phone0, sets: {names: [binder]}"),
        ("provision: {count: 1, directory: /srv}", "phones: {count: 1, directory: /srv/}"),
    ],
)
def test_phones_of_one_resource_have_a_directory_of_their_own(first: str, second: str, file: Path) -> None:
    text = f"resources: [{{resource_name: a.io/x, {first}}}, {{resource_name: a.io/y, {second}}}]"
    with pytest.raises(ConfigError, match=r"resources\[0\] and resources\[1\]: the binder devices are in .*: give the"):
        loaded(file, text)


def test_two_resources_have_phones_in_different_directories(file: Path) -> None:
    phones = "{{resource_name: a.io/{0}, phones: {{count: 1, directory: /srv/{0}}}}}"
    assert len(loaded(file, f"resources: [{phones.format('x')}, {phones.format('xy')}]").resources) == 2


@pytest.mark.parametrize(("directory", "reserved"), [("/proc/phones", "/proc"), ("/etc", "/etc/hostname")])
@pytest.mark.parametrize("key", ["phones", "provision"])
def test_binder_devices_are_not_made_where_a_container_has_other_files(
    key: str, directory: str, reserved: str, file: Path
) -> None:
    error = (
        rf"^file {file}: {key}.directory: '{directory}' is not allowed: a container has its binder devices at the "
        rf"host's path, too, where the container runtime or the kubelet provides {reserved}$"
    )
    with pytest.raises(ConfigError, match=error):
        loaded(file, f"{key}: {{count: 1, directory: {directory}}}")


@pytest.mark.parametrize(
    "shared",
    [
        "shared_mounts: [/srv/phones:/phones]",
        "shared_mounts: [/data:/data, '/:/host']",
        "shared_mounts: [/srv//phones/phone0:/neighbour]",
        "shared_devices: [{path: /srv/phones/phone0/binder, container_path: /dev/neighbour}]",
        "shared_devices: [/srv/*/phone0/binder]",
        "spread_devices: [/srv/phones/phone*/binder]",
    ],
)
def test_phones_cannot_be_shared_with_all_containers(shared: str, file: Path) -> None:
    key = shared.partition(":")[0]
    error = rf"^file {file}: {key}: '/.*' is not allowed: all containers would get the binder devices of all phones, "
    with pytest.raises(ConfigError, match=error):
        loaded(file, f"phones: {{count: 1, directory: /srv/phones}}\n{shared}")


@pytest.mark.parametrize(
    ("directory", "shared"),
    [
        ("/run/aosp-binderfs/phones", "shared_mounts: ['/var/run:/host']"),
        ("/run/aosp-binderfs/phones", "shared_mounts: ['/var/run/aosp-binderfs:/host']"),
        ("/run/aosp-binderfs/phones", "shared_mounts: ['/var//run/./aosp-binderfs/phones/phone1:/host']"),
        ("/run/aosp-binderfs/phones", "shared_devices: ['/var/r?n/aosp-binderfs/phones/*/binder']"),
        ("/var/run/phones", "shared_mounts: ['/run:/host']"),
        ("/var/run/phones", "shared_mounts: ['/var/run/phones:/host']"),
        ("/run/lock/phones", "shared_mounts: ['/var/lock:/host']"),
    ],
)
def test_phones_cannot_be_shared_through_a_link_that_hosts_have(directory: str, shared: str, file: Path) -> None:
    with pytest.raises(ConfigError, match="is not allowed: all containers would get the binder devices of all phones"):
        loaded(file, f"phones: {{count: 1, directory: {directory}}}\n{shared}")


@pytest.mark.parametrize(
    "shared",
    [
        "shared_mounts: ['/proc:/host/proc']",
        "shared_mounts: ['/proc/1/root/run:/host']",
        "shared_mounts: ['/proc/self/cwd:/host']",
        "shared_mounts: ['/dev/fd/7:/host']",
        "shared_mounts: ['/var/lock/../aosp-binderfs:/host']",
        "shared_devices: ['/pro?/1/root/run/aosp-binderfs/phones/*/binder']",
        "spread_devices: ['/proc/1/root/run/aosp-binderfs/phones/*/binder']",
    ],
)
def test_phones_cannot_be_shared_through_a_path_that_can_lead_anywhere(shared: str, file: Path) -> None:
    key = shared.partition(":")[0]
    error = rf"^file {file}: {key}: '/.*' is not allowed with phones .*: it can lead to any directory of the host"
    with pytest.raises(ConfigError, match=error):
        loaded(file, f"phones: {{count: 1}}\n{shared}")


def test_containers_can_share_what_is_beside_the_phones(file: Path) -> None:
    phones = "phones: {count: 1, directory: /srv/phones}"
    others = (
        "shared_mounts: [/srv/phones2:/srv/phones2, binderfs:/dev/binderfs, /var/lib/x:/x, /var/runs:/y]\n"
        "shared_devices: [/dev/fuse]"
    )
    assert loaded(file, f"{phones}\n{others}").resources[0].phones is not None
    strict = "isolation: strict\nshared_mounts: [/srv:/srv]"
    assert loaded(file, f"{phones}\n{strict}").resources[0].phones is not None
