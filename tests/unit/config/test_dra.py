"""The key ``api``: conflicts with other keys and resources, and the directories that DRA uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aosp_plugin.config import Api, Config, as_yaml, load
from aosp_plugin.errors import ConfigError
from tests.unit.config.tables import loaded, write

if TYPE_CHECKING:
    from pathlib import Path


def test_phones_found_and_provisioned_devices_may_be_served_by_dra(file: Path) -> None:
    others = "{device_prefix: x}, {resource_name: example.com/other, provision: {count: 1}}"
    config = loaded(file, f"api: dra\nresources: [{{phones: {{count: 1}}}}, {others}]")
    assert {resource.api for resource in config.resources} == {Api.DRA}


def test_variable_selects_the_api(file: Path) -> None:
    path = write(file, "version: v1\nphones: {count: 1}\n")
    assert load({}, {"AOSP_PLUGIN_API": "dra"}, path)[0].resources[0].api is Api.DRA
    assert load({}, {}, path)[0].resources[0].api is Api.DEVICE_PLUGIN


def test_effective_configuration_can_be_loaded_again(file: Path) -> None:
    config, settings = load({}, {}, write(file, "version: v1\nphones: {count: 1}\napi: dra\n"))
    assert load({}, {}, write(file, as_yaml(settings)))[0] == config


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("aosp.io/Phone", "the driver name Phone.aosp.io must consist of lower case letters"),
        ("aosp.io/my_phone", "the driver name my_phone.aosp.io must consist of lower case letters"),
        (f"aosp.io/{'p' * 56}", f"the driver name {'p' * 56}.aosp.io has 64 characters; the limit is 63"),
    ],
)
def test_driver_requires_a_valid_name(name: str, problem: str, file: Path) -> None:
    error = rf"^file {file}: api: dra does not support the resource name '{name}' \(file {file}: resource_name\): "
    with pytest.raises(ConfigError, match=error + problem):
        loaded(file, f"resource_name: {name}\napi: dra")
    loaded(file, f"resource_name: {name}")


def test_name_of_a_single_letter_is_no_cdi_kind(file: Path) -> None:
    error = (
        rf"^file {file}: api: the resource name 'a.example/b' is not a valid CDI kind \(file {file}: resource_name\)"
    )
    with pytest.raises(ConfigError, match=error):
        loaded(file, "resource_name: a.example/b\napi: dra")


def test_replicas_are_the_device_plugins(file: Path) -> None:
    error = rf"^file {file}: replicas: 2 replicas are not allowed with api: dra \(variable AOSP_PLUGIN_API\), .*: 1$"
    path = write(file, "version: v1\nreplicas: 2\n")
    with pytest.raises(ConfigError, match=error):
        load({}, {"AOSP_PLUGIN_API": "dra"}, path)


def test_device_list_has_no_effect_with_dra(file: Path) -> None:
    error = rf"^file {file}: device_list: device_list has no effect with api: dra \(file {file}: api\), .*: remove one"
    with pytest.raises(ConfigError, match=error):
        loaded(file, "device_list: [cdi-cri]\napi: dra")


def test_resources_of_each_api_require_devices_of_their_own(file: Path) -> None:
    both = "resources: [{{resource_name: one.example/phone, api: dra, {}}}, {{resource_name: two.example/phone, {}}}]"
    with pytest.raises(ConfigError, match=r"both match aosp_binder\* in /dev"):
        loaded(file, both.format("device_prefix: aosp_binder", "device_prefix: aosp_binder"))
    with pytest.raises(ConfigError, match="give the phones of each resource a directory of their own"):
        loaded(file, both.format("phones: {count: 1}", "phones: {count: 1}"))
    loaded(file, both.format("phones: {count: 1}", "phones: {count: 1, directory: /run/others}"))


def test_drivers_have_different_names(file: Path) -> None:
    text = "resources: [{{resource_name: bb.io/aa, device_prefix: x}}, {{resource_name: io/aa.bb, api: {}}}]"
    error = r"the names bb.io/aa and io/aa.bb both lead to the DRA driver aa.bb.io"
    with pytest.raises(ConfigError, match=error):
        loaded(file, f"api: dra\n{text.format('dra')}")
    loaded(file, f"api: dra\n{text.format('device-plugin')}")


@pytest.mark.parametrize(
    ("kubelet_dir", "root"),
    [
        ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet"),
        ("/var/lib/k0s/kubelet//device-plugins/", "/var/lib/k0s/kubelet"),
        ("/device-plugins", ""),
    ],
)
def test_directories_of_dra_are_beside_the_device_plugin_directory(kubelet_dir: str, root: str) -> None:
    config = Config(kubelet_dir=kubelet_dir)
    assert config.plugins_registry == f"{root}/plugins_registry"
    assert config.driver_directory("phone.aosp.io") == f"{root}/plugins/phone.aosp.io"
