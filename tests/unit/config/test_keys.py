"""Keys: their documentation, defaults, and the validation of their values."""

import datetime
import math
from typing import Any

import msgspec
import pytest
import yaml

from aosp_plugin.config import sources
from aosp_plugin.config.convert import descriptions, keys_of, shown
from aosp_plugin.config.keys import DEFAULTS, KEYS, RESOURCE_KEYS, Config, Resource, SharedDevice, shared_device
from aosp_plugin.config.sources import load
from aosp_plugin.config.values import normalised
from aosp_plugin.framework.errors import ConfigError
from aosp_plugin.framework.service.address import listen_address
from tests.unit.config.tables import INVALID, INVALID_PAIRS


def test_every_key_is_documented() -> None:
    """The description is a sentence; the default is allowed; the example is allowed and differs from the default."""
    assert INVALID.keys() == KEYS.keys()
    structs: list[type[msgspec.Struct]] = [Config, Resource]
    structs += [struct for key in RESOURCE_KEYS.values() for struct in key.structs]
    for struct in structs:
        fields = {field.name: field for field in msgspec.structs.fields(struct)}
        for name, key in keys_of(struct).items():
            if name == "resources":
                continue
            assert descriptions(struct)[name].endswith("."), name
            assert key.allowed, name
            example = key.setting(yaml.safe_load(key.example), "example").value
            if not (field := fields[name]).required:
                default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
                assert key.setting(default, "default").value == default != example


def test_defaults_apply_without_any_source() -> None:
    """Variables of other programs are ignored."""
    current, settings = load({}, {"PATH": "/bin", "AOSP_PLUGINS": "x"}, None)
    assert current == Config()
    assert settings == {name: (default, "default") for name, default in DEFAULTS.items()}


def test_invalid_value_is_rejected_with_the_allowed_values() -> None:
    for name, value in INVALID_PAIRS:
        with pytest.raises(ConfigError) as raised:
            pytest.fail(f"{name} has accepted {KEYS[name].setting(value, f'file x.yaml: {name}')}")
        assert str(raised.value) == f"file x.yaml: {name}: {shown(value)} is not allowed; allowed: {KEYS[name].allowed}"
        assert raised.value.exit_code == 2


def test_variable_of_a_mapping_refers_to_the_file() -> None:
    for name in ("phones", "sets", "numa", "resources"):
        variable = sources.variable(name)
        error = f"^variable {variable}: {name} can only be set in the configuration file$"
        with pytest.raises(ConfigError, match=error):
            load({}, {variable: "{}"}, None)


def test_error_in_an_item_of_a_list_names_the_item() -> None:
    for key, items, error in (
        (
            "shared_devices",
            [{"path": "/a"}, {"path": "/b", "requird": True}],
            r"x\[1\].requird: unknown key; did you m",
        ),
        ("shared_devices", [{"required": True}], r"x\[0\].path: required key is missing; allowed: an absolute path"),
        ("shared_devices", ["/a", {"path": "b"}], r"x\[1\].path: 'b' is not allowed; allowed: an absolute path"),
        ("shared_devices", [{}], r"x\[0\]: {} is not allowed; allowed: a list of HOST"),
        *(
            ("slice_devices", [{"path": path, "count": 1}], r"x\[0\].path: .* allowed: an absolute path with one \*")
            for path in ("/dev/loop", "/dev/*/loop*", "/dev/loop[0-9]*", "dev/loop*")
        ),
    ):
        with pytest.raises(ConfigError, match=f"^{error}"):
            KEYS[key].setting(items, "x")


def test_item_of_a_list_is_text_or_a_mapping() -> None:
    items = KEYS["shared_devices"].setting(["/a:/b", {"path": "/c", "required": True}], "x").value
    assert items == ("/a:/b", SharedDevice(path="/c", required=True))
    assert [shared_device(item) for item in items] == [SharedDevice(path="/a", container_path="/b"), items[1]]
    assert shared_device("/a:/a") == SharedDevice(path="/a")


def test_values_are_shown_on_one_line() -> None:
    cases: list[tuple[Any, str]] = [
        (None, "null"),
        (math.inf, "inf"),
        ('a "b"\n\x85\u2028\ud800 é', "'a \"b\"\\n\\x85\\u2028\\ud800 é'"),
        ({"names": ["a"], 1: None}, "{'names': ['a'], 1: null}"),
        (datetime.date(2024, 1, 1), "2024-01-01"),
        ([[[["deep"]]]], "[[[[...]]]]"),
        (list(range(30)), f"[{', '.join(map(str, range(20)))}, ...]"),
        (16**3000, ("0x1" + "0" * 3000)[:500] + "..."),
    ]
    for value, text in cases:
        assert shown(value) == text
    for value in ("x" * 1_000_000, {"x" * 400: "y" * 400}, ["x" * 400] * 20, b"x" * 1000):
        assert len(shown(value)) < 510
        assert "..." in shown(value)


def test_listen_address_is_a_host_and_a_port() -> None:
    for text, address in (
        ("", None),
        ("127.0.0.1:9478", ("127.0.0.1", 9478)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ):
        assert listen_address(text) == address


def test_normalised_path_is_unique() -> None:
    assert {normalised(path) for path in ("/dev", "//dev", "///dev/", "/./dev/x/..", "/../dev")} == {"/dev"}
