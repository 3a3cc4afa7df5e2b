"""Rules across keys: conflicts within a resource and between resources, and their absence."""

import json
import re
from pathlib import Path

import pytest

from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.config.keys import Config, Phones, status_address
from aosp_plugin.config.sources import as_yaml, load
from aosp_plugin.config.values import Api, ProvisionedBy, Recreate
from aosp_plugin.framework.errors import ConfigError
from tests.unit.config.tables import error_of, loaded, write

PHONES = "phones: {count: 1, directory: /srv/phones}\n"
LEAKED = "is not allowed: all containers would get the binder devices of all phones, which are in "
OWN_DEVICES = "is not allowed: containers have their binder devices at"
RESERVED = "is not allowed: a container has its binder devices at the host's path, too, where the container runtime or"
PAIR = "resources: [{resource_name: a.io/xx, %s}, {resource_name: a.io/yy, %s}]"
STATUS_ADDRESS = ": the page and /status cannot have the address … beside … (listen): set status_listen to another port"

CONFLICTS = [
    # Recreation and replicas
    (
        "recreate: on-start\nreplicas: 2",
        "replicas: 2 replicas require recreate: never, not on-start (F: recreate): the",
    ),
    ("phones: {count: 1}\nreplicas: 2", "replicas: 2 replicas require recreate: never, not on-start (default with ph"),
    # Addresses
    ("listen: '0.0.0.0:9478'", f"listen{STATUS_ADDRESS}"),
    *(
        (f"listen: '{listen}'\nstatus_listen: '{status}'", f"listen; F: status_listen{STATUS_ADDRESS}")
        for listen, status in (("0.0.0.0:80", "10.1.2.3:80"), ("[fd00::1]:80", "[::]:80"))
    ),
    # Directories of phones
    *(
        (
            f"phones: {{count: 3, directory: {path}}}",
            f"phones.directory: '{path}' is not allowed: the runtime gives a pr",
        )
        for path in ("/dev", "/dev/binderfs", "/run/../dev/x", "/")
    ),
    (
        "phones: {count: 1, directory: /etc}",
        f"phones.directory: '/etc' {RESERVED} the kubelet provides /etc/hostname",
    ),
    # Names
    ("sets: {names: [binder, hwbinder], pattern: '{set}{name}'}", "sets: the pattern is ambiguous for the names"),
    *(
        (
            f"{keys}\nresource_name: a.io/x",
            f"{key}: the resource name 'a.io/x' is not a valid CDI kind (F: resource_name): ",
        )
        for keys, key in (("device_list: [cdi-cri]", "device_list"), ("api: dra", "api"))
    ),
    *(
        (
            f"resource_name: {name}\napi: dra",
            f"api: dra does not support the resource name '{name}' (F: resource_name): {why}",
        )
        for name, why in (
            ("aosp.io/Phone", "the driver name Phone.aosp.io must consist of lower case letters"),
            (f"aosp.io/{'p' * 56}", f"the driver name {'p' * 56}.aosp.io has 64 characters; the limit is 63"),
        )
    ),
    # DRA
    ("replicas: 2\napi: dra", "replicas: 2 replicas are not allowed with api: dra (F: api), …; allowed: 1"),
    (
        "device_list: [cdi-cri]\napi: dra",
        "device_list: device_list has no effect with api: dra (F: api), …: remove one",
    ),
    # Phones
    *(
        (
            f"provisioned_by: {by}\nphones: {{count: 1}}\n{key}: {value}",
            f"provisioned_by: {by} is not possible with {key}: {value} (F: {key}): …{when}; use provisioned_by: ",
        )
        for by, key, value, when in (
            ("command", "recreate", "on-start", "each container starts"),
            ("provisioner", "api", "dra", "a claim is prepared"),
        )
    ),
    *(
        (
            f"phones: {{count: 1}}\n{key}: {value}",
            f"{key}: {key} has no effect with phones (F: phones), whose binder devices the plugin makes: remove one",
        )
        for key, value in (
            ("device_dir", "/srv"),
            ("device_prefix", "x"),
            ("sets", "{size: 3}"),
        )
    ),
    *(
        (f"{PHONES}{key}: {value}", f"{key}: '/… {LEAKED}/srv/phones (F: phones.directory)")
        for key, value in (
            ("shared_mounts", "[/data:/data, '/:/host']"),
            ("shared_devices", "[/srv/*/phone0/binder]"),
            ("spread_devices", "[/srv/phones/phone*/binder]"),
        )
    ),
    *(  # through the link /var/run
        (f"phones: {{count: 1, directory: {directory}}}\n{shared}", f"…{LEAKED}")
        for directory, shared in (
            ("/run/aosp-binderfs/phones", "shared_mounts: ['/var//run/./aosp-binderfs/phones/phone1:/host']"),
            ("/run/aosp-binderfs/phones", "shared_devices: ['/var/run/aosp-binderfs/phones/*/binder']"),
            ("/var/run/phones", "shared_mounts: ['/run:/host']"),
        )
    ),
    # Container paths that the runtime or the kubelet provides
    *(
        (
            f"{key}: ['{path if key == 'container_paths' else f'/host/x:{path}'}']",
            f"{key}: the container path '/…' is not allowed: the container runtime or the kubelet provides /",
        )
        for key, paths in (
            ("container_paths", ("/", "/dev/..", "/proc/self", "/sys/fs", "/dev/null", "/dev/pts/0", "/dev/fd/3")),
            ("shared_devices", ("/dev", "/dev/shm")),
            ("shared_mounts", ("/etc", "/etc/hosts", "/var/run/secrets")),
        )
        for path in paths
    ),
    # Container paths that conflict with each other
    *(
        (f"{keys}", f"{sources}: the container paths '{first}' and '{second}' {relation}")
        for keys, sources, first, second, relation in (
            ("container_paths: [/dev/a, /dev/a/b]", "container_paths", "/dev/a", "/dev/a/b", "lie in each other"),
            (
                "container_paths: [/dev//ashmem/.]",
                *("container_paths; default", "/dev/ashmem", "/dev/ashmem", "are the same"),
            ),
            ("shared_mounts: [binderfs:/b/c, /x:/b]", "shared_mounts", "/b/c", "/b", "lie in each other"),
            (
                "shared_mounts: [/x:/opt]\ncontainer_paths: [/opt/binder]",
                *("container_paths; F: shared_mounts", "/opt/binder", "/opt", "lie in each other"),
            ),
            (
                "shared_devices: [/dev/dri/*]\nspread_devices: [/dev/dri/renderD*]",
                *("shared_devices; F: spread_devices", "/dev/dri/*", "/dev/dri/renderD*", "overlap"),
            ),
            *(
                (f"spread_devices: [{items}]", "spread_devices", first, second, relation)
                for items, first, second, relation in (
                    ("/dev/dri/renderD*, /dev/dri/renderD128", "/dev/dri/renderD*", "/dev/dri/renderD128", "overlap"),
                    ("{path: /dev/a*, container_path: /dev/x}, /dev/x", "/dev/x", "/dev/x", "are the same"),
                )
            ),
            (
                "shared_devices: [{path: /dev/a, container_path: /dev/b}, /dev/b]",
                *("shared_devices", "/dev/b", "/dev/b", "are the same"),
            ),
        )
    ),
    # Container paths of the binder devices themselves
    *(
        (keys, f"…{OWN_DEVICES} {devices}")
        for keys, devices in (
            ("container_paths: [//dev/./aosp_binder007]", "/dev/aosp_binderN"),
            ("device_prefix: binder\nsets: {size: 3}\ncontainer_paths: [/dev/binder0]", "/dev/binderN"),
            ("sets: {names: [binder]}\ncontainer_paths: [/dev/phone1/binder/x]", "/dev/{set}/{name}"),
            ("phones: {count: 3}\nshared_mounts: [/x:/run/aosp-binderfs]", "/run/aosp-binderfs/phones"),
            ("device_dir: /srv/binders\ncontainer_paths: [/srv/binders/a]", "/srv/binders"),
        )
    ),
    # Patterns
    *(
        (f"container_paths: [/dev/hwbinder]\n{key}: ['{pattern}']", f"…{key}…'{pattern}'{error}")
        for key, pattern, error in (
            ("shared_devices", "/dev/*", "…the kubelet provides /dev/console"),
            ("shared_devices", "/*", "…the kubelet provides /proc"),
            ("shared_devices", "/dev/dri/**", " is not allowed: braces and ** are not supported; use *"),
            ("spread_devices", "/dev/aosp_*", f" {OWN_DEVICES} /dev/aosp_binderN"),
            ("shared_devices", "/dev/binderfs/*", " and '/dev/binderfs' lie in each other"),
            ("spread_devices", "/dev/hwbin?er", " overlap"),
        )
    ),
    (
        "shared_devices: ['/dev/a?:/dev/x']",
        "shared_devices: the pattern '/dev/a?' cannot have the container path '/dev/x': each",
    ),
    # Variables
    *(
        (f"visible_devices_env: A\nspread_devices: [{items}]", "spread_devices; F: visible_devices_env: the variable …")
        for items in ("{path: /dev/x, env: A}", "{path: /dev/x, env: B}, {path: /dev/y, env: B}")
    ),
    *(
        (
            f"phones: {{count: 1}}\n{key}: [{item}]",
            f"{key}: '{path}' is not allowed: braces and ** are not supported; use *",
        )
        for key, item, path in (
            ("shared_devices", "'/dev/input/event{number}'", "/dev/input/event{number}"),
            ("spread_devices", "'/dev/dri/{card,renderD}*'", "/dev/dri/{card,renderD}*"),
            ("slice_devices", "{path: '/dev/loop{x}*', count: 1}", "/dev/loop{x}*"),
        )
    ),
    # Mounts of single devices
    *(
        (f"{keys}shared_mounts: ['/srv/{{number}}:/a']", "shared_mounts: '/srv/{number}:/a' … (default); use {id}")
        for keys in ("", "device_prefix: x\n")
    ),
    ("phones: {count: 1, directory: /srv/p}\nshared_mounts: ['/srv/{id}/x:/a']", "shared_mounts: '/srv/*/x' is not"),
    # Slices
    ("sets: {names: [binder]}\nslice_devices: [{path: /dev/loop*, count: 2}]", "slice_devices: a slice is … (F: sets)"),
    ("sets: {size: 1}\nreplicas: 3\nslice_devices: [{path: /dev/loop*, count: 2}]", "replicas: 3 … (F: slice_devices)"),
    *(
        (f"phones: {{count: 1}}\nslice_devices: [{{path: {path}, count: 2}}]\n{keys}", error)
        for path, keys, error in (
            ("/dev/pts/*", "", "slice_devices: the container path '/dev/pts/[0-9]*' is not allowed: the container run"),
            ("/dev/loop*", "shared_devices: [/dev/loop7:/dev/x]", "slice_devices; F: shared_devices: '/dev/loop7' is"),
            ("/dev/loop*", "spread_devices: ['/dev/loop?']", "slice_devices; F: spread_devices: '/dev/loop?' is not"),
        )
    ),
    ("sets: {size: 3}\nslice_devices: [{path: /dev/aosp_binder*, count: 2}]", f"…{OWN_DEVICES} /dev/aosp_binderN"),
    *(
        (PAIR % pair, "resources[0] and resources[1]: F: resources[….slice_devices; F: resources[…_devices: '/dev/")
        for slices in ("phones: {count: 1}, slice_devices: [{path: /dev/nbd*, count: 2}]",)
        for others in ("shared_devices: [/dev/nbd0]", "sets: {size: 1}, slice_devices: [{path: /dev/nbd*, count: 1}]")
        for pair in ((slices, others), (others, slices))
    ),
    # Two resources
    (
        "resources:\n- {resource_name: a.io/x, device_prefix: x}\n- {device_prefix: y, resource_name: a.io/x}\n",
        "resources[0] and resources[1]: both have the resource_name 'a.io/x' (F: resources[0].resource_name; F: resour",
    ),
    *(
        (PAIR % pair, f"resources[0] and resources[1]: a.io/xx and a.io/yy both match {devices} (")
        for first, second, devices in (
            ("api: dra", "api: device-plugin", "aosp_binder* in /dev"),
            ("device_prefix: x", "device_prefix: x_", "x_* in /dev"),
            ("device_dir: /a/b", "device_dir: //a/./c/../b/", "aosp_binder* in /a/b"),
        )
        for pair in ((first, second), (second, first))
    ),
    (
        f"{(PAIR % ('device_prefix: x', 'device_prefix: y'))[:-1]}, {{device_prefix: x1}}]",
        "resources[0] and resources[2]: a.io/xx and aosp.io/binder both match x1* in /dev",
    ),
    *(
        (PAIR % pair, "resources[0] and resources[1]: the binder devices are in …: give the phones of each resource a ")
        for pair in (
            ("phones: {count: 1}", "phones: {count: 1}, api: dra"),
            ("phones: {count: 1, directory: /srv/a}", "phones: {count: 1, directory: /srv/a/b}"),
            ("phones: {count: 1, directory: /srv}", "device_dir: /srv/phone0, sets: {names: [binder]}"),
        )
    ),
    (
        "api: dra\nresources: [{resource_name: bb.io/aa, device_prefix: x}, {resource_name: io/aa.bb}]",
        "resources[0] and resources[1]: the names bb.io/aa and io/aa.bb both lead to the DRA driver aa.bb.io (F: reso",
    ),
    (
        PAIR % ("container_paths: [/dev/x]", "device_prefix: b, container_paths: [/dev/b1]"),
        "resources[1].container_paths: the container path '/dev/b1'",
    ),
]

ALLOWED = [
    "phones: {count: 1}\nreplicas: 2\nrecreate: never",
    "provisioned_by: command\nrecreate: on-start",
    "provisioned_by: command\napi: dra",
    f"{PHONES}shared_mounts: [/srv/phones2:/srv/phones2, binderfs:/dev/binderfs, /var/lib/x:/x, /var/runs:/y]",
    f"{PHONES}isolation: strict\nshared_mounts: [/srv:/srv]",
    f"resource_name: aosp.io/{'P' * 56}",
    *(
        f"container_paths: ['{path}']\nshared_devices: ['/host/x:{path}x']\nshared_mounts: ['/proc:{path}y']"
        for path in ("/dev/nullx", "/dev/dri/null", "/etc/phone")
    ),
    "device_prefix: binder\ncontainer_paths: [/dev/binder, /dev/hwbinder]",
    "sets: {names: [binder, hwbinder], pattern: '{name}{set}'}\ncontainer_paths: [/dev/binder, /dev/hwbinder]",
    "device_dir: /dev/binderfs\ndevice_prefix: binder\ncontainer_paths: [/dev/binder]",
    "isolation: strict\ncontainer_paths: [/dev/binderfs/binder]",
    "shared_mounts: [/a:/x, /b:/xy, '/a/{id}']",
    "sets: {size: 2}\nshared_mounts: ['/a/{number}/{id}.socket:/y']",
    "shared_devices: [/dev/null:/dev/dri/card0, /dev/null:/dev/dri/card1]",
    # One of the matches may be required, or come first.
    "shared_devices: [/dev/dma_heap/*, {path: /dev/dma_heap/system, required: true}]",
    "spread_devices: [/dev/dri/card*, {path: /dev/dri/renderD*, container_path: /dev/dri/renderD128, env: GPU}]",
    "phones: {count: 1}\nshared_devices: [/dev/loop-control]\nslice_devices: [{path: /dev/loop*, count: 2}]",
    PAIR % ("device_prefix: x, container_paths: [/dev/x]", "device_prefix: b, container_paths: [/dev/x]"),
    PAIR % ("phones: {count: 1, directory: /srv/x}", "phones: {count: 1, directory: /srv/xy}"),
    PAIR % ("api: dra, phones: {count: 1}", "phones: {count: 1, directory: /run/others}"),
    *(PAIR % ("verify: char", second) for second in ("device_prefix: aosp_bindex", "sets: {names: [binder]}")),
    "api: dra\nresources: [{resource_name: bb.io/aa, device_prefix: x}, {resource_name: io/aa.bb, api: device-plugin}]",
]


def test_number_of_container_paths_is_limited(file: Path) -> None:
    """Each is compared with each other one."""
    lists = {key: [f"/dev/{key}{number}" for number in range(66)] for key in ("shared_devices", "spread_devices")}
    error = error_of(file, json.dumps({"version": "v1", **lists}))
    assert error.endswith("133 container paths; allowed: at most 128 in all")


def test_conflict_names_the_keys(file: Path) -> None:
    """The error begins with the key to change; F is the file, and … any text."""
    for text, error in CONFLICTS:
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
        ({}, {"AOSP_PLUGIN_REPLICAS": "2"}, "recreate: on-start", "variable AOSP_PLUGIN_REPLICAS: 2 replicas require"),
        ({"device_dir": "/srv"}, {}, "phones: {count: 3}", "flag --device-dir: device_dir has no effect with phones"),
        (
            {},
            {"AOSP_PLUGIN_API": "dra"},
            "replicas: 2",
            f"file {file}: replicas: 2 replicas are not allowed with api: ",
        ),
        (
            {"resource_name": "b.io/z"},
            {},
            "resources: [{resource_name: a.io/x, device_prefix: x}, {device_prefix: y}]",
            f"file {file}: resources[0] and resources[1]: both have the resource_name 'b.io/z' (flag --resource-name);",
        ),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(error)}"):
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
    assert (resource.resource_name, resource.verify) == ("a.io/x", Verify.PROBE)
    assert resource.recreate is Recreate.NEVER
    assert settings["container_paths"].source == "default with phones"


def test_phones_of_the_command_are_not_recreated_by_default(file: Path) -> None:
    text = "provisioned_by: command\nresources: [{phones: {count: 1}}, {device_prefix: x}]"
    first, second = loaded(file, text).resources
    assert (first.provisioned_by, first.recreate, first.verify) == (
        ProvisionedBy.COMMAND,
        Recreate.NEVER,
        Verify.BINDER,
    )
    assert (second.provisioned_by, second.recreate) == (ProvisionedBy.COMMAND, Recreate.NEVER)
    _, settings = load({}, {"AOSP_PLUGIN_PROVISIONED_BY": "command"}, write(file, "version: v1\nphones: {count: 1}\n"))
    assert settings["recreate"].source == "default with provisioned_by: command"


def test_phones_and_found_devices_may_be_served_by_dra(file: Path) -> None:
    path = write(file, "version: v1\nresources: [{phones: {count: 1}}, {device_prefix: x}]\n")
    config, settings = load({}, {"AOSP_PLUGIN_API": "dra"}, path)
    assert {resource.api for resource in config.resources} == {Api.DRA}
    assert load({}, {}, write(file, as_yaml(settings)))[0] == config


def test_directories_of_dra_are_beside_the_device_plugin_directory() -> None:
    for kubelet_dir, root in (
        ("/var/lib/k0s/kubelet//device-plugins/", "/var/lib/k0s/kubelet"),
        ("/device-plugins", ""),
    ):
        config = Config(kubelet_dir=kubelet_dir)
        assert config.plugins_registry == f"{root}/plugins_registry"
        assert config.driver_directory("phone.aosp.io") == f"{root}/plugins/phone.aosp.io"
