"""Rules across keys: conflicts within a resource and between resources, and their absence."""

import json
import re
from pathlib import Path

import pytest

from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.config.keys import Config, Phones, status_address
from aosp_plugin.config.sources import load
from aosp_plugin.config.values import Recreate
from aosp_plugin.framework.errors import ConfigError
from tests.unit.config.tables import error_of, loaded, write

PHONES = "phones: {count: 1, directory: /srv/phones}\n"
PHONES_IN_RUN = "phones: {count: 1, directory: /run/aosp-binderfs/phones}\n"
SLICES = "phones: {count: 1}, slice_devices: [{path: /dev/nbd*, count: 2}]"
LEAKED = "is not allowed: all containers would get the binder devices of all phones, which are in "
OWN_DEVICES = "is not allowed: containers have their binder devices at"
PAIR = "resources: [{resource_name: a.io/xx, %s}, {resource_name: a.io/yy, %s}]"
STATUS_ADDRESS = ": the page and /status cannot have the address … beside … (listen): set status_listen to another port"

CONFLICTS = {
    "replicas: 2 replicas require recreate: never, not on-start (F: recreate)": ["recreate: on-start\nreplicas: 2"],
    "replicas: 2 replicas require …(default with phones": ["phones: {count: 1}\nreplicas: 2"],
    f"listen{STATUS_ADDRESS}": ["listen: '0.0.0.0:9478'"],
    f"listen; F: status_listen{STATUS_ADDRESS}": ["listen: '[fd00::1]:80'\nstatus_listen: '[::]:80'"],
    "phones.directory: '/…' is not allowed: the runtime gives": [
        f"phones: {{count: 3, directory: {path}}}" for path in ("/dev", "/run/../dev/x", "/")
    ],
    "phones.directory: '/etc' …the kubelet provides /etc/hostname": ["phones: {count: 1, directory: /etc}"],
    "sets: the pattern is ambiguous for": ["sets: {names: [binder, hwbinder], pattern: '{set}{name}'}"],
    "device_list: …is not a valid CDI kind (F: resource_name): ": ["device_list: [cdi-cri]\nresource_name: a.io/x"],
    "api: …is not a valid CDI kind": ["api: dra\nresource_name: a.io/x"],
    "api: dra does not support the resource name": ["resource_name: aosp.io/Phone\napi: dra"],
    "replicas: 2 replicas are not allowed with api: dra (F: api), …; allowed: 1": ["replicas: 2\napi: dra"],
    "device_list: device_list has no effect with api: dra": ["device_list: [cdi-cri]\napi: dra"],
    "provisioned_by: command is not possible with recreate: on-start (F: recreate): …; use ": [
        "provisioned_by: command\nphones: {count: 1}\nrecreate: on-start"
    ],
    "provisioned_by: provisioner is not possible with api: dra": [
        "provisioned_by: provisioner\nphones: {count: 1}\napi: dra"
    ],
    "… has no effect with phones (F: phones), whose": [
        f"phones: {{count: 1}}\n{key}" for key in ("device_dir: /srv", "device_prefix: x", "sets: {size: 3}")
    ],
    f"…: '/… {LEAKED}/srv/phones (F: phones.directory)": [
        f"{PHONES}shared_mounts: [/data:/data, '/:/host']",
        f"{PHONES}spread_devices: [/srv/phones/phone*/binder]",
    ],
    f"…{LEAKED}": [  # through the link /var/run
        f"{PHONES_IN_RUN}shared_devices: ['/var/run/aosp-binderfs/phones/*/binder']",
        "phones: {count: 1, directory: /var/run/phones}\nshared_mounts: ['/run:/host']",
    ],
    "…: the container path '/…' is not allowed: the container runtime or the kubelet provides /": [
        *(f"container_paths: ['{path}']" for path in ("/", "/dev/..", "/proc/self", "/dev/fd/3")),
        "shared_devices: ['/host/x:/dev']",
        "shared_mounts: ['/host/x:/etc/hosts']",
        "container_paths: [/dev/hwbinder]\nshared_devices: ['/dev/*']",
        "phones: {count: 1}\nslice_devices: [{path: /dev/pts/*, count: 2}]",
    ],
    "…: the container paths '…' and '…' lie in each other": [
        "container_paths: [/dev/a, /dev/a/b]",
        "shared_mounts: [/x:/opt]\ncontainer_paths: [/opt/binder]",
        "container_paths: [/dev/hwbinder]\nshared_devices: ['/dev/binderfs/*']",
    ],
    "…: the container paths '…' and '…' are the same": [
        "container_paths: [/dev//ashmem/.]",
        "spread_devices: [{path: /dev/a*, container_path: /dev/x}, /dev/x]",
    ],
    "…: the container paths '…' and '…' overlap": [
        "shared_devices: [/dev/dri/*]\nspread_devices: [/dev/dri/renderD*]",
        "spread_devices: [/dev/dri/renderD*, /dev/dri/renderD128]",
    ],
    f"…{OWN_DEVICES} /dev/aosp_binderN": [
        "container_paths: [//dev/./aosp_binder007]",
        "container_paths: [/dev/hwbinder]\nspread_devices: ['/dev/aosp_*']",
    ],
    f"…{OWN_DEVICES} /dev/{{set}}/{{name}}": ["sets: {names: [binder]}\ncontainer_paths: [/dev/phone1/binder/x]"],
    f"…{OWN_DEVICES} /run/aosp-binderfs/phones": ["phones: {count: 3}\nshared_mounts: [/x:/run/aosp-binderfs]"],
    "spread_devices; F: visible_devices_env: the variable …": [
        "visible_devices_env: A\nspread_devices: [{path: /x, env: A}]"
    ],
    "resources[1].container_paths: the container path '/dev/b1'": [
        PAIR % ("container_paths: [/dev/x]", "device_prefix: b, container_paths: [/dev/b1]")
    ],
    "… is not allowed: braces and ** are not supported; use *": [
        "shared_devices: ['/dev/dri/**']",
        "phones: {count: 1}\nspread_devices: ['/dev/dri/{card,renderD}*']",
        "phones: {count: 1}\nslice_devices: [{path: '/dev/loop{x}*', count: 1}]",
    ],
    "shared_devices: the pattern '/dev/a?' cannot have the container path '/dev/x'": [
        "shared_devices: ['/dev/a?:/dev/x']"
    ],
    "shared_mounts: '/srv/{number}:/a' … (default); use {id}": ["shared_mounts: ['/srv/{number}:/a']"],
    "shared_mounts: '/srv/*/x' is not": ["phones: {count: 1, directory: /srv/p}\nshared_mounts: ['/srv/{id}/x:/a']"],
    "slice_devices: a slice is … (F: sets)": ["sets: {names: [binder]}\nslice_devices: [{path: /dev/loop*, count: 2}]"],
    "replicas: 3 … (F: slice_devices)": ["sets: {size: 1}\nreplicas: 3\nslice_devices: [{path: /dev/loop*, count: 2}]"],
    "slice_devices; F: …_devices: '/dev/loop…' is not": [
        f"phones: {{count: 1}}\nslice_devices: [{{path: /dev/loop*, count: 2}}]\n{others}"
        for others in ("shared_devices: [/dev/loop7:/dev/x]", "spread_devices: ['/dev/loop?']")
    ],
    "resources[0] and resources[1]: F: resources[….slice_devices; F: resources[…_devices: '/dev/": [
        PAIR % pair
        for others in ("shared_devices: [/dev/nbd0]", "sets: {size: 1}, slice_devices: [{path: /dev/nbd*, count: 1}]")
        for pair in ((SLICES, others), (others, SLICES))
    ],
    "resources[0] and resources[1]: both have the resource_name 'a.io/x' (F: resources[0].resource_name; F: resour": [
        "resources:\n- {resource_name: a.io/x, device_prefix: x}\n- {device_prefix: y, resource_name: a.io/x}"
    ],
    "resources[0] and resources[1]: a.io/xx and a.io/yy both match …* in /": [
        PAIR % pair
        for first, second in (
            ("device_prefix: x", "device_prefix: x_"),
            ("device_dir: /a/b", "device_dir: //a/./c/../b/"),
        )
        for pair in ((first, second), (second, first))
    ],
    "resources[0] and resources[1]: the binder devices are in …: give the phones of each resource a ": [
        PAIR % ("phones: {count: 1}", "phones: {count: 1}, api: dra"),
        PAIR % ("phones: {count: 1, directory: /srv}", "device_dir: /srv/phone0, sets: {names: [binder]}"),
    ],
    "resources[0] and resources[1]: the names bb.io/aa and io/aa.bb both lead to the DRA driver aa.bb.io (F: reso": [
        "api: dra\nresources: [{resource_name: bb.io/aa, device_prefix: x}, {resource_name: io/aa.bb}]"
    ],
}
"""Configurations with a conflict, by the error: it begins with the key to change; F is the file, … any text."""

ALLOWED = [
    "provisioned_by: command\nrecreate: on-start\nreplicas: 1",
    f"{PHONES}shared_mounts: [/srv/phones2:/srv/phones2, binderfs:/dev/binderfs, /var/runs:/y]",
    f"{PHONES}isolation: strict\nshared_mounts: [/srv:/srv]",
    f"resource_name: aosp.io/{'P' * 56}",
    "container_paths: [/dev/nullx]\nshared_devices: ['/host/x:/dev/dri/null']\nshared_mounts: ['/proc:/etc/phone']",
    "sets: {names: [binder, hwbinder], pattern: '{name}{set}'}\ncontainer_paths: [/dev/binder, /dev/hwbinder]",
    "device_dir: /dev/binderfs\ndevice_prefix: binder\ncontainer_paths: [/dev/binder]",
    "sets: {size: 2}\nshared_mounts: ['/a/{number}/{id}.socket:/y', /b:/yy]",
    # One of the matches may be required, or come first.
    "shared_devices: [/dev/dma_heap/*, {path: /dev/dma_heap/system, required: true}]",
    "spread_devices: [/dev/dri/card*, {path: /dev/dri/renderD*, container_path: /dev/dri/renderD128, env: GPU}]",
    "phones: {count: 1}\nshared_devices: [/dev/loop-control]\nslice_devices: [{path: /dev/loop*, count: 2}]",
    PAIR % ("phones: {count: 1, directory: /srv/x}", "phones: {count: 1, directory: /srv/xy}"),
    *(PAIR % ("verify: char", second) for second in ("device_prefix: aosp_bindex", "sets: {names: [binder]}")),
    "api: dra\nresources: [{resource_name: bb.io/aa, device_prefix: x}, {resource_name: io/aa.bb, api: device-plugin}]",
]


def test_number_of_container_paths_is_limited(file: Path) -> None:
    """Each is compared with each other one."""
    shared = [f"/dev/shared{number}" for number in range(66)]
    at_limit, beyond = (
        error_of(file, json.dumps({"version": "v1", "shared_devices": shared, "spread_devices": spread}))
        for spread in ([f"/dev/spread{number}" for number in range(count)] for count in (61, 62))
    )
    assert at_limit == ""
    assert beyond.endswith("129 container paths; allowed: at most 128 in all")


def test_conflict_names_the_keys(file: Path) -> None:
    for error, texts in CONFLICTS.items():
        for text in texts:
            message = error_of(file, f"version: v1\n{text}\n").replace(f"file {file}", "F")
            assert re.match(".*".join(map(re.escape, error.split("…"))), message), (text, message)


def test_no_conflict(file: Path) -> None:
    for text in ALLOWED:
        assert error_of(file, f"version: v1\n{text}\n") == "", text


def test_effective_values_are_compared(file: Path) -> None:
    """A variable or flag can cause a conflict, and can resolve it."""
    recreated = write(file, "version: v1\nrecreate: on-start\nreplicas: 2\n")
    assert load({}, {"AOSP_PLUGIN_RECREATE": "never"}, recreated)[0].resources[0].replicas == 2
    for flags, environment, text, error in (
        ({}, {"AOSP_PLUGIN_REPLICAS": "2"}, "recreate: on-start", "^variable AOSP_PLUGIN_REPLICAS: 2 replicas require"),
        ({"device_dir": "/srv"}, {}, "phones: {count: 3}", "^flag --device-dir: device_dir has no effect with phones"),
    ):
        with pytest.raises(ConfigError, match=error):
            load(flags, environment, write(file, f"version: v1\n{text}\n"))


def test_status_is_on_loopback_unless_configured(file: Path) -> None:
    for listen, status_listen, address in (
        ("127.0.0.1:80", None, ("127.0.0.1", 80)),
        ("[::1]:80", None, ("::1", 80)),
        ("10.1.2.3:80", None, ("127.0.0.1", 80)),
        ("", None, None),
        ("10.1.2.3:80", "", None),
        ("0.0.0.0:80", "0.0.0.0:80", ("0.0.0.0", 80)),  # noqa: S104
        ("0.0.0.0:80", "127.0.0.1:81", ("127.0.0.1", 81)),
        ("0.0.0.0:0", None, ("127.0.0.1", 0)),
    ):
        text = f"listen: '{listen}'" + ("" if status_listen is None else f"\nstatus_listen: '{status_listen}'")
        assert status_address(loaded(file, text)) == address


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
    assert (resource.resource_name, resource.verify, resource.recreate) == ("a.io/x", Verify.PROBE, Recreate.NEVER)
    assert settings["container_paths"].source == "default with phones"


def test_phones_of_the_command_are_not_recreated_by_default(file: Path) -> None:
    config, settings = load({}, {"AOSP_PLUGIN_PROVISIONED_BY": "command"}, write(file, "version: v1\n" + PHONES))
    assert config.resources[0].recreate is Recreate.NEVER
    assert settings["recreate"].source == "default with provisioned_by: command"


def test_directories_of_dra_are_beside_the_device_plugin_directory() -> None:
    for kubelet_dir, root in (
        ("/var/lib/k0s/kubelet//device-plugins/", "/var/lib/k0s/kubelet"),
        ("/device-plugins", ""),
    ):
        config = Config(kubelet_dir=kubelet_dir)
        assert config.plugins_registry == f"{root}/plugins_registry"
        assert config.driver_directory("phone.aosp.io") == f"{root}/plugins/phone.aosp.io"
