"""Where values come from, which of them holds, and what is said of a file that is not one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin import config
from aosp_plugin.binder.devices.edits import Isolation
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.config import DEFAULTS, KEYS, Config, load
from aosp_plugin.errors import ConfigError
from tests.unit.config.tables import GOOD, value_of, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", GOOD)
def test_each_key_is_read_from_each_place(name: str, file: Path) -> None:
    """A flag, a variable and a file give the same value, and the source says which of them it was."""
    text, yaml_text, value = GOOD[name]
    path = write(file, f"version: v1\n{name}: {yaml_text}\n")
    variable = "AOSP_PLUGIN_" + name.upper()
    flag = "--" + name.replace("_", "-")
    places: list[tuple[dict[str, Any], dict[str, str], str | None, str]] = [
        ({}, {}, path, f"file {path}: {name}"),
        ({}, {"AOSP_PLUGIN_CONFIG": path}, None, f"file {path}: {name}"),
    ]
    if KEYS[name].variable:
        places.append(({}, {variable: text}, None, f"variable {variable}"))
    if KEYS[name].flag:
        places.append(({name: value if isinstance(value, bool) else text}, {}, None, f"flag {flag}"))
    for flags, environment, config_file, source in places:
        made, settings_of = load(flags, environment, config_file)
        assert value_of(made, name) == value != DEFAULTS[name]
        assert type(value_of(made, name)) is type(value)
        assert settings_of[name] == (value, source)
        assert {setting.source for key, setting in settings_of.items() if key != name} == {"default"}


def test_a_flag_wins_over_a_variable_and_that_over_the_file(file: Path, tmp_path: Path) -> None:
    """Key by key, and the file that a flag names over the one that the variable names."""
    path = write(file, "version: v1\nverify: file\nlog_level: error\nisolation: strict\n")
    other = write(tmp_path / "other.yaml", "version: v1\nisolation: nonsense\n")
    environment = {
        "AOSP_PLUGIN_CONFIG": other,
        "AOSP_PLUGIN_VERIFY": "binder",
        "AOSP_PLUGIN_LOG_LEVEL": "warning",
    }
    made, settings_of = load({"verify": "probe"}, environment, path)
    assert (made.resources[0].verify, made.log_level, made.resources[0].isolation) == (
        Verify.PROBE,
        "warning",
        Isolation.STRICT,
    )
    assert settings_of["verify"].source == "flag --verify"
    assert settings_of["log_level"].source == "variable AOSP_PLUGIN_LOG_LEVEL"
    assert settings_of["isolation"].source == f"file {path}: isolation"


def test_settings_come_in_the_order_of_the_keys(file: Path) -> None:
    """Whatever order they are given in, people find them at the same place."""
    path = write(file, "version: v1\npath_env: /bin\nverify: file\n")
    assert list(load({}, {}, path)[1]) == list(KEYS)


def test_a_bad_value_is_refused_even_where_another_place_would_win(file: Path) -> None:
    """A mistake in a file is told at once, and not when the flag is taken away one day."""
    path = write(file, "version: v1\nverify: deep\n")
    with pytest.raises(ConfigError, match="verify: 'deep' is not allowed"):
        load({"verify": "char"}, {}, path)


def test_an_unknown_key_of_the_file_is_told_with_the_known_ones(file: Path) -> None:
    """A typing error must not leave the default in place without a word."""
    path = write(file, "version: v1\nresource-name: a.io/b\n")
    with pytest.raises(ConfigError) as raised:
        load({}, {}, path)
    assert str(raised.value).startswith(f"file {path}: resource-name: there is no such key; the keys are cdi_dir, ")
    assert all(name in str(raised.value) for name in (*KEYS, "resources"))


@pytest.mark.parametrize("text", ["version: v1\n1: a\n", "version: v1\nnull: a\n", "version: v1\n2024-01-01: a\n"])
def test_a_key_that_is_no_text_is_unknown(file: Path, text: str) -> None:
    """YAML has keys of other types."""
    with pytest.raises(ConfigError, match="there is no such key"):
        load({}, {}, write(file, text))


def test_an_unknown_variable_is_told_with_the_known_ones() -> None:
    """Variables of other programs are none of its business."""
    with pytest.raises(ConfigError) as raised:
        load({}, {"HOME": "/", "AOSP_PLUGIN_RESOURCE": "a.io/b"}, None)
    assert str(raised.value).startswith("variable AOSP_PLUGIN_RESOURCE: there is no such key; the variables are ")
    assert all(config.variable(name) in str(raised.value) for name, key in KEYS.items() if key.variable)


def test_a_list_in_a_variable_has_commas_and_may_have_empty_parts() -> None:
    """A comma at the end is no path."""
    made, _ = load({}, {"AOSP_PLUGIN_SHARED_DEVICES": "/dev/a,,/dev/b,"}, None)
    assert made.resources[0].shared_devices == ("/dev/a", "/dev/b")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a mapping of keys to values is expected, with version: v1"),
        ("- verify\n", "a mapping of keys to values is expected"),
        ("verify: file\n", "version: None is not known; allowed: v1"),
        ("version: v2\n", "version: 'v2' is not known; allowed: v1"),
        ("version: 1\n", "version: 1 is not known"),
        ("version: [v1\n", "is not YAML: .*line 2"),
        ("version: !!python/object:os.system v1\n", "is not YAML: "),
        ("version: v1\nverify: \x07\n", "is not YAML: "),
    ],
)
def test_a_file_of_another_form_is_told_with_its_name(file: Path, text: str, why: str) -> None:
    """In one line, whatever YAML has to say about it."""
    path = write(file, text)
    with pytest.raises(ConfigError, match=f"^file {path}.*{why}") as raised:
        load({}, {}, path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["missing_device_ttl: 2024-13-45", "missing_device_ttl: 0x_", "missing_device_ttl: 0b_"]
)
def test_a_number_or_date_that_yaml_can_not_read_is_the_file_s_mistake(file: Path, text: str) -> None:
    """What looks like a date or a number and is none is told like any other value that is not allowed."""
    with pytest.raises(ConfigError, match="file "):
        load({}, {}, write(file, f"version: v1\n{text}\n"))


def test_a_file_with_a_version_alone_changes_nothing(file: Path) -> None:
    """All keys may be left out."""
    assert load({}, {}, write(file, "version: v1\n"))[0] == Config()


@pytest.mark.parametrize("what", ["nothing", "a directory", "other bytes"])
def test_a_file_that_can_not_be_read_is_told_with_its_name(file: Path, what: str) -> None:
    """Missing, a directory, or not UTF-8."""
    if what == "a directory":
        file.mkdir()
    elif what == "other bytes":
        file.write_bytes(b"version: v1\npath_env: \xff\n")
    with pytest.raises(ConfigError, match=f"^file {file} can't be read: ") as raised:
        load({}, {}, str(file))
    assert raised.value.__cause__ is not None


def test_a_file_may_hold_any_letters(file: Path) -> None:
    """It is UTF-8, whatever the locale."""
    assert load({}, {}, write(file, "version: v1\ndevice_dir: /дев\n"))[0].resources[0].device_dir == "/дев"


def test_a_file_nested_beyond_reason_is_no_yaml(file: Path) -> None:
    """It is the file's mistake, and not a traceback."""
    with pytest.raises(ConfigError, match="is not YAML"):
        load({}, {}, write(file, "version: v1\nmissing_device_ttl: " + "[" * 5000))
