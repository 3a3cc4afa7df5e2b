"""Keys: their documentation, defaults, and the validation of their values."""

from __future__ import annotations

import datetime
import math
from typing import Any

import msgspec
import pytest
import yaml

from aosp_plugin.config import sources
from aosp_plugin.config.convert import descriptions, keys_of, shown
from aosp_plugin.config.keys import (
    DEFAULTS,
    KEYS,
    PROCESS_KEYS,
    RESOURCE_KEYS,
    Config,
    Resource,
    SharedDevice,
    shared_device,
)
from aosp_plugin.config.sources import load
from aosp_plugin.framework.errors import ConfigError
from tests.unit.config.tables import EXAMPLES, INVALID, INVALID_PAIRS

STRUCTURED = {"phones", "sets", "provision", "numa"}
"""Keys whose value is a mapping."""


def test_every_key_has_invalid_values_in_the_tables() -> None:
    assert INVALID.keys() == KEYS.keys()


@pytest.mark.parametrize(
    ("struct", "name"),
    [
        (struct, name)
        for struct in (Config, Resource, *(struct for key in RESOURCE_KEYS.values() for struct in key.structs))
        for name in keys_of(struct)
        if name != "resources"
    ],
)
def test_every_key_is_documented(struct: type[msgspec.Struct], name: str) -> None:
    """The description is a sentence; the default is allowed; the example is allowed and differs from the default."""
    key = keys_of(struct)[name]
    assert descriptions(struct)[name].endswith(".")
    assert key.allowed
    (field,) = (field for field in msgspec.structs.fields(struct) if field.name == name)
    example = key.setting(yaml.safe_load(key.example), "example").value
    if not field.required:
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        assert key.setting(default, "default").value == default != example


def test_defaults_apply_without_any_source() -> None:
    """Variables of other programs are ignored."""
    current, settings = load({}, {"PATH": "/bin", "AOSP_PLUGINS": "x"}, None)
    assert current == Config()
    assert settings == {name: (default, "default") for name, default in DEFAULTS.items()}


@pytest.mark.parametrize(("name", "value"), INVALID_PAIRS)
def test_invalid_value_is_rejected_with_the_allowed_values(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        KEYS[name].setting(value, f"file x.yaml: {name}")
    assert str(raised.value) == f"file x.yaml: {name}: {shown(value)} is not allowed; allowed: {KEYS[name].allowed}"
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("name", [*STRUCTURED, "resources"])
def test_variable_of_a_mapping_refers_to_the_file(name: str) -> None:
    assert name in PROCESS_KEYS or name in EXAMPLES
    variable = sources.variable(name)
    with pytest.raises(ConfigError, match=f"^variable {variable}: {name} can only be set in the configuration file$"):
        load({}, {variable: "{}"}, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replicas", 1000),
        ("replicas", 1),
        ("startup_taint", ""),
        ("startup_taint", "x" * 63),
        ("startup_taint", "startup-taint.cluster-autoscaler.kubernetes.io/phones"),
        ("feature_file", ""),
        ("feature_file", "/features.d/a"),
        ("leak_scan_interval", 1.0),
        ("leak_scan_interval", 0.0),
        ("listen", ""),
        ("listen", "[::1]:65535"),
        ("listen", "127.0.0.1:0"),
        ("status_listen", ""),
        ("status_listen", None),
        ("allowed_hosts", ("A-1.b_c", "x" * 63, ".".join(["x" * 63] * 3))),
        ("pod_resources_socket", ""),
        ("visible_devices_env", ""),
        ("shared_devices", ()),
        ("device_list", ("volume-mounts",)),
        ("device_list", ("cdi-annotations",)),
    ],
)
def test_limit_of_the_allowed_values_is_allowed(name: str, value: Any) -> None:
    assert KEYS[name].setting(value, "x").value == value


@pytest.mark.parametrize(
    ("items", "error"),
    [
        ([{"path": "/a"}, {"path": "/b", "requird": True}], "x[1].requird: unknown key; did you mean required?"),
        ([{"required": True}], "x[0].path: required key is missing; allowed: an absolute path, which may have the"),
        (["/a", {"path": "b"}], "x[1].path: 'b' is not allowed; allowed: an absolute path"),
        ([{"path": "/a", "required": "perhaps"}], "x[0].required: 'perhaps' is not allowed; allowed: true, false"),
        ([{"path": "/a", "container_path": "b"}], "x[0].container_path: 'b' is not allowed; allowed: an absolute path"),
        ([{}], "x[0]: {} is not allowed; allowed: a list of HOST"),
        ([["/a"]], "x: [['/a']] is not allowed; allowed: a list of HOST"),
    ],
)
def test_error_in_an_item_of_a_list_names_the_item(items: list[Any], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        KEYS["shared_devices"].setting(items, "x")
    assert str(raised.value).startswith(error)


def test_item_of_a_list_is_text_or_a_mapping() -> None:
    items = KEYS["shared_devices"].setting(["/a:/b", {"path": "/c", "required": True}], "x").value
    assert items == ("/a:/b", SharedDevice(path="/c", required=True))
    assert [shared_device(item) for item in items] == [SharedDevice(path="/a", container_path="/b"), items[1]]
    assert shared_device("/a:/a") == SharedDevice(path="/a")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-7, "-7"),
        (0.5, "0.5"),
        (math.inf, "inf"),
        ('a "b"\n\x85\u2028\ud800 é', "'a \"b\"\\n\\x85\\u2028\\ud800 é'"),
        ("it's", '"it\'s"'),
        ({"names": ["a"], 1: None, "a b": ""}, "{'names': ['a'], 1: null, 'a b': ''}"),
        (datetime.date(2024, 1, 1), "2024-01-01"),
        ([[[["deep"]]]], "[[[[...]]]]"),
        (list(range(30)), f"[{', '.join(map(str, range(20)))}, ...]"),
        (b"bytes", "b'bytes'"),
        (16**3000, ("0x1" + "0" * 3000)[:500] + "..."),
    ],
)
def test_values_are_shown_on_one_line(value: Any, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize("value", ["x" * 1_000_000, {"x" * 400: "y" * 400}, ["x" * 400] * 20, b"x" * 1000])
def test_long_values_are_cut(value: Any) -> None:
    assert len(shown(value)) < 510
    assert "..." in shown(value)
