"""The keys: what they are called, what they may be, and what is said of a bad value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from aosp_plugin import config
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.config import DEFAULTS, KEYS, RESOURCE_KEYS, Config, NamedSets, NumberedSets, Provision, Resource, load
from aosp_plugin.config.keys import keys_of
from aosp_plugin.config.setting import setting
from aosp_plugin.errors import ConfigError
from tests.unit.config.tables import BAD, GOOD, write

if TYPE_CHECKING:
    from pathlib import Path

OF_RESOURCE: dict[str, Any] = {
    "resource_name": "aosp.io/binder",
    "device_dir": "/dev",
    "device_prefix": "aosp_binder",
    "verify": "char",
    "isolation": "shared",
    "permissions": "rw",
    "shared_mounts": ("binderfs:/dev/binderfs",),
    "shared_devices": ("/dev/ashmem",),
    "container_paths": (),
    "visible_devices_env": "BINDER_VISIBLE_DEVICES",
    "path_env": "/system/bin:/system/xbin",
    "device_list": ("envvar", "volume-mounts"),
    "sets": None,
    "provision": None,
    "numa": {},
    "recreate": "never",
    "replicas": 1,
    "missing_device_ttl": 300.0,
}


def test_the_tables_of_this_test_have_every_key() -> None:
    """A new key needs a good value and a bad one here."""
    assert set(GOOD) == set(KEYS) == {name for name, _ in BAD}
    fields = [*msgspec.structs.fields(Resource), *msgspec.structs.fields(Config)]
    assert [*KEYS, "resources"] == [field.name for field in fields]


def test_every_key_is_documented() -> None:
    """Each has a sentence for people, what is allowed, and a default that is."""
    for name, key in KEYS.items():
        assert key.help.endswith(".")
        assert len(key.help) > 15
        assert key.allowed
        assert setting(key, DEFAULTS[name], "default") == (DEFAULTS[name], "default")


def test_the_flags_of_serve_are_those_that_were_promised() -> None:
    """Scripts and manifests use them; the other keys have a variable and a place in the file."""
    assert {config.flag(name) for name, key in KEYS.items() if key.flag} == {
        "--resource-name",
        "--device-dir",
        "--device-prefix",
        "--host-root",
        "--kubelet-dir",
        "--listen",
        "--verify",
        "--isolation",
        "--log-level",
        "--log-format",
        "--require-devices",
    }


def test_the_defaults_are_those_that_were_promised() -> None:
    """Without anything given, every value is the default and says so."""
    made, settings_of = load({}, {"PATH": "/bin", "AOSP_PLUGINS": "x"}, None)
    assert made == Config()
    assert {setting.source for setting in settings_of.values()} == {"default"}
    assert msgspec.to_builtins(made) == {
        "host_root": "/",
        "kubelet_dir": "/var/lib/kubelet/device-plugins",
        "listen": "127.0.0.1:9478",
        "log_level": "info",
        "log_format": "text",
        "require_devices": False,
        "cdi_dir": "/var/run/cdi",
        "pod_resources_socket": "/var/lib/kubelet/pod-resources/kubelet.sock",
        "leak_scan_interval": 0.0,
        "resources": (OF_RESOURCE,),
    }
    assert msgspec.to_builtins(Resource()) == OF_RESOURCE


def test_the_names_of_flags_and_variables_follow_from_the_key() -> None:
    """One name, in three spellings."""
    assert (config.flag("log_level"), config.variable("log_level")) == ("--log-level", "AOSP_PLUGIN_LOG_LEVEL")


def test_a_configuration_can_not_be_changed() -> None:
    """It is read again as a whole, or not at all."""
    with pytest.raises(AttributeError):
        Config().log_level = "debug"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Config().resources[0].verify = Verify.FILE  # type: ignore[misc]
    for part, key in (
        (NumberedSets(size=3), "size"),
        (NamedSets(names=("a",)), "names"),
        (Provision(count=3), "count"),
    ):
        with pytest.raises(AttributeError):
            setattr(part, key, 4)


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_told_with_its_key_and_what_is_allowed(name: str, value: Any) -> None:
    """One line: which key of which file, what it says, and what it may say."""
    with pytest.raises(ConfigError) as raised:
        setting(KEYS[name], value, f"file x.yaml: {name}")
    assert str(raised.value) == f"file x.yaml: {name}: {value!r} is not allowed; allowed: {KEYS[name].allowed}"
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, value in BAD if isinstance(value, str) and KEYS[name].variable]
)
def test_a_bad_text_is_refused_in_a_variable_as_well(name: str, value: str) -> None:
    """The text names the variable."""
    variable = config.variable(name)
    if isinstance(DEFAULTS[name], tuple):
        value = "a,/b"
    with pytest.raises(ConfigError, match=f"^variable {variable}: "):
        load({}, {variable: value}, None)


@pytest.mark.parametrize("bad", ["", "vv", "V1"])
def test_a_bad_flag_is_named(bad: str) -> None:
    """In the form in which it was typed."""
    with pytest.raises(
        ConfigError, match=r"^flag --log-level: '.*' is not allowed; allowed: debug, info, warning, error"
    ):
        load({"log_level": bad}, {}, None)


@pytest.mark.parametrize("text", ["/dev\0", "/dev\n", "/dev\x7f", "/dev\x85", "/dev\udcff"])
@pytest.mark.parametrize("key", ["device_dir", "path_env", "listen"])
def test_what_can_not_be_printed_is_no_value(key: str, text: str) -> None:
    """A value goes into logs, paths and messages to the kubelet: control characters and bytes are refused."""
    with pytest.raises(ConfigError, match=f"flag {config.flag(key)}: .* is not allowed"):
        load({key: text}, {}, None)


def test_a_shared_device_has_a_path(file: Path) -> None:
    """The word for the own binderfs stands for a directory, which is no device."""
    with pytest.raises(ConfigError, match="shared_devices"):
        load({}, {}, write(file, "version: v1\nshared_devices: ['binderfs:/dev/x']\n"))


def test_what_has_a_structure_has_neither_flag_nor_variable() -> None:
    """A mapping is for the file; lists of plain text have a variable with commas."""
    assert {name for name, key in KEYS.items() if not key.variable} == {"sets", "provision", "numa"}
    assert not any(key.flag and not key.variable for key in KEYS.values())
    for name in ("sets", "provision", "numa", "resources"):
        with pytest.raises(ConfigError, match="there is no such key; the variables are "):
            load({}, {config.variable(name): "{}"}, None)


def test_every_part_of_a_structured_value_is_documented() -> None:
    """Like a key: with a sentence, what is allowed, and a default that is."""
    for key in RESOURCE_KEYS.values():
        for struct in key.structs:
            for name, part in keys_of(struct).items():
                assert part.help.endswith(".")
                assert len(part.help) > 15
                assert part.allowed
                (field,) = [field for field in msgspec.structs.fields(struct) if field.name == name]
                assert field.required or setting(part, field.default, "default").value == field.default


@pytest.mark.parametrize(("name", "last"), [("replicas", 1000), ("replicas", 1), ("leak_scan_interval", 0.0)])
def test_the_last_number_that_is_allowed_is_allowed(name: str, last: Any) -> None:
    """Both ends of a range are part of it."""
    assert setting(KEYS[name], last, "x").value == last


@pytest.mark.parametrize(
    "value", [["volume-mounts"], ["cdi-cri"], ["cdi-annotations"], ["envvar", "cdi-annotations", "cdi-cri"]]
)
def test_one_way_to_bring_nodes_is_enough(value: list[str]) -> None:
    """The names alone, in a variable, would be of nodes that are not there."""
    assert setting(KEYS["device_list"], value, "x").value == tuple(value)
