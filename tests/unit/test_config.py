"""The configuration: every key, where its value comes from, and what is said of a bad one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin import config
from aosp_plugin.binder.edits import Isolation, SharedPath
from aosp_plugin.binder.health import Verify
from aosp_plugin.config import KEYS, Config, listen_address, load, shared_path
from aosp_plugin.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

GOOD: dict[str, tuple[str, str, Any]] = {
    "resource_name": ("example.com/x", "example.com/x", "example.com/x"),
    "device_dir": ("/run/nodes", "/run/nodes", "/run/nodes"),
    "device_prefix": ("binder", "binder", "binder"),
    "host_root": ("/host", "/host", "/host"),
    "kubelet_dir": ("/k", "/k", "/k"),
    "listen": ("", '""', ""),
    "verify": ("probe", "probe", Verify.PROBE),
    "isolation": ("strict", "strict", Isolation.STRICT),
    "log_level": ("debug", "debug", "debug"),
    "log_format": ("json", "json", "json"),
    "require_nodes": ("true", "true", True),
    "permissions": ("mrw", "mrw", "mrw"),
    "shared_mounts": ("/a,/b:/c", "[/a, '/b:/c']", ("/a", "/b:/c")),
    "shared_devices": ("", "[]", ()),
    "visible_devices_env": ("NODES", "NODES", "NODES"),
    "path_env": ("/bin", "/bin", "/bin"),
    "forget_after": ("0.5", "0.5", 0.5),
}
"""Each key with a value as a variable, as YAML, and as it is in the end; none is the default."""

BAD: list[tuple[str, Any]] = [
    ("resource_name", "binder"),
    ("resource_name", 5),
    ("device_dir", "dev"),
    ("device_dir", ""),
    ("device_dir", "/dev\0"),
    ("device_prefix", ""),
    ("device_prefix", "a b"),
    ("device_prefix", "a/b"),
    ("device_prefix", "a,b"),
    ("device_prefix", "x" * 64),
    ("host_root", "host"),
    ("kubelet_dir", "./kubelet"),
    ("listen", "127.0.0.1"),
    ("listen", ":80"),
    ("listen", "127.0.0.1:"),
    ("listen", "127.0.0.1:http"),
    ("listen", "127.0.0.1:65536"),
    ("listen", "127.0.0.1:-1"),
    ("verify", "deep"),
    ("verify", True),
    ("isolation", "none"),
    ("log_level", "trace"),
    ("log_level", "INFO"),
    ("log_format", "xml"),
    ("require_nodes", "perhaps"),
    ("require_nodes", ""),
    ("require_nodes", 1),
    ("require_nodes", 2),
    ("permissions", ""),
    ("permissions", "rr"),
    ("permissions", "rwx"),
    ("permissions", "rwmr"),
    ("shared_mounts", ["a"]),
    ("shared_mounts", ["/a", "/b:c"]),
    ("shared_mounts", ["binderfs"]),
    ("shared_mounts", "/a"),
    ("shared_mounts", [1]),
    ("shared_devices", ["dev/ashmem"]),
    ("shared_devices", {"/a": "/b"}),
    ("shared_devices", None),
    ("visible_devices_env", "1A"),
    ("visible_devices_env", "A=B"),
    ("visible_devices_env", "A B"),
    ("visible_devices_env", "A\n"),
    ("path_env", "/bin\0"),
    ("path_env", ["/bin"]),
    ("forget_after", "soon"),
    ("forget_after", -0.1),
    ("forget_after", float("inf")),
    ("forget_after", float("nan")),
    ("forget_after", None),
    ("forget_after", True),
]


def write(path: Path, text: str) -> str:
    """Write a configuration file, and return its path."""
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plugin.yaml"


def test_the_tables_of_this_test_have_every_key() -> None:
    """A new key needs a good value and a bad one here."""
    assert set(GOOD) == set(KEYS) == {name for name, _ in BAD}
    assert list(KEYS) == [field.name for field in msgspec.structs.fields(Config)]


def test_every_key_is_documented() -> None:
    """Each has a sentence for people, what is allowed, and a default that is."""
    defaults = Config()
    for name, key in KEYS.items():
        assert key.help.endswith(".")
        assert len(key.help) > 15
        assert key.allowed
        assert config._setting(name, getattr(defaults, name), "default").value == getattr(defaults, name)


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
        "--require-nodes",
    }


def test_the_defaults_are_those_that_were_promised() -> None:
    """Without anything given, every value is the default and says so."""
    made, settings_of = load({}, {"PATH": "/bin", "AOSP_PLUGINS": "x"}, None)
    assert made == Config()
    assert {setting.source for setting in settings_of.values()} == {"default"}
    assert msgspec.to_builtins(made) == {
        "resource_name": "aosp.io/binder",
        "device_dir": "/dev",
        "device_prefix": "aosp_binder",
        "host_root": "/",
        "kubelet_dir": "/var/lib/kubelet/device-plugins",
        "listen": "127.0.0.1:9478",
        "verify": "char",
        "isolation": "shared",
        "log_level": "info",
        "log_format": "text",
        "require_nodes": False,
        "permissions": "rw",
        "shared_mounts": ("binderfs:/dev/binderfs",),
        "shared_devices": ("/dev/ashmem",),
        "visible_devices_env": "BINDER_VISIBLE_DEVICES",
        "path_env": "/system/bin:/system/xbin",
        "forget_after": 300.0,
    }


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
        ({}, {variable: text}, None, f"variable {variable}"),
    ]
    if KEYS[name].flag:
        places.append(({name: value if isinstance(value, bool) else text}, {}, None, f"flag {flag}"))
    for flags, environment, config_file, source in places:
        made, settings_of = load(flags, environment, config_file)
        assert getattr(made, name) == value != getattr(Config(), name)
        assert type(getattr(made, name)) is type(getattr(Config(), name))
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
    assert (made.verify, made.log_level, made.isolation) == (Verify.PROBE, "warning", Isolation.STRICT)
    assert settings_of["verify"].source == "flag --verify"
    assert settings_of["log_level"].source == "variable AOSP_PLUGIN_LOG_LEVEL"
    assert settings_of["isolation"].source == f"file {path}: isolation"


def test_settings_come_in_the_order_of_the_keys(file: Path) -> None:
    """Whatever order they are given in, people find them at the same place."""
    path = write(file, "version: v1\npath_env: /bin\nverify: file\n")
    assert list(load({}, {}, path)[1]) == list(KEYS)


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_told_with_its_key_and_what_is_allowed(name: str, value: Any) -> None:
    """One line: which key of which file, what it says, and what it may say."""
    with pytest.raises(ConfigError) as raised:
        config._setting(name, value, f"file x.yaml: {name}")
    assert str(raised.value) == f"file x.yaml: {name}: {value!r} is not allowed; allowed: {KEYS[name].allowed}"
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, value in BAD if isinstance(value, str)])
def test_a_bad_text_is_refused_in_a_variable_as_well(name: str, value: str) -> None:
    """The text names the variable."""
    variable = config.variable(name)
    if name == "shared_mounts":
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
    assert str(raised.value).startswith(f"file {path}: resource-name: there is no such key; the keys are device_dir, ")
    assert all(name in str(raised.value) for name in KEYS)


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
    assert all(config.variable(name) in str(raised.value) for name in KEYS)


def test_a_list_in_a_variable_has_commas_and_may_have_empty_parts() -> None:
    """A comma at the end is no path."""
    made, _ = load({}, {"AOSP_PLUGIN_SHARED_DEVICES": "/dev/a,,/dev/b,"}, None)
    assert made.shared_devices == ("/dev/a", "/dev/b")


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


@pytest.mark.parametrize("text", ["forget_after: 2024-13-45", "forget_after: 0x_", "forget_after: 0b_"])
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
    assert load({}, {}, write(file, "version: v1\ndevice_dir: /дев\n"))[0].device_dir == "/дев"


def test_the_printed_configuration_is_a_file_that_gives_the_same(file: Path, tmp_path: Path) -> None:
    """Behind each value stands where it came from; reading it again changes no value."""
    path = write(file, "version: v1\nforget_after: 0.0000001\nshared_mounts: []\npath_env: 'a\"b\\c: #d'\n")
    made, settings_of = load({"verify": "probe"}, {"AOSP_PLUGIN_REQUIRE_NODES": "1"}, path)
    printed = config.as_yaml(settings_of)
    lines = printed.splitlines()
    assert lines[0] == "version: v1"
    assert lines[1:3] == ['resource_name: "aosp.io/binder"  # default', 'device_dir: "/dev"  # default']
    assert 'verify: "probe"  # flag --verify' in lines
    assert "require_nodes: true  # variable AOSP_PLUGIN_REQUIRE_NODES" in lines
    assert f"shared_mounts: []  # file {path}: shared_mounts" in lines
    assert len(lines) == len(KEYS) + 1
    assert printed.endswith("\n")
    assert load({}, {}, write(tmp_path / "again.yaml", printed))[0] == made


@given(
    st.builds(
        Config,
        device_dir=st.text(st.characters(min_codepoint=32, max_codepoint=126)).map(lambda text: f"/{text}"),
        path_env=st.text(st.sampled_from("abc \"'\\:#-{}[]é漢")),
        forget_after=st.floats(0, 1e300),
        require_nodes=st.booleans(),
        shared_devices=st.lists(st.sampled_from(["/a", "/b:/c", "/d #e"]), max_size=3).map(tuple),
    )
)
@settings(derandomize=True, deadline=None)
def test_any_configuration_survives_being_printed(made: Config) -> None:
    """Quotes, signs of comments and line ends are part of the value."""
    import yaml  # noqa: PLC0415 - only here

    printed = config.as_yaml({name: config.Setting(getattr(made, name), "default") for name in KEYS})
    document = yaml.safe_load(printed)
    assert document.pop("version") == "v1"
    again = {name: config._setting(name, value, "again").value for name, value in document.items()}
    assert Config(**again) == made


@pytest.mark.parametrize(
    ("text", "host", "container"),
    [
        ("/a", "/a", "/a"),
        ("/a:/b", "/a", "/b"),
        ("/a:", "/a", "/a"),
        ("binderfs:/dev/binderfs", "binderfs", "/dev/binderfs"),
    ],
)
def test_a_shared_path_is_the_host_s_and_where_the_container_finds_it(text: str, host: str, container: str) -> None:
    """At the same place, unless another one is given."""
    assert shared_path(text) == SharedPath(host, container)


@pytest.mark.parametrize("text", ["", "a", "a:/b", "/a:b", ":/b", "binderfs", "binderfs:", "binderfs/x:/b"])
def test_a_shared_path_is_absolute_or_the_own_binderfs(text: str) -> None:
    """The own binderfs has no path of its own that a container could find it at."""
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        shared_path(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("127.0.0.1:9478", ("127.0.0.1", 9478)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("[::]:1", ("::", 1)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    """An IPv6 address stands in brackets."""
    assert listen_address(text) == address


def test_port_zero_and_the_last_port_are_allowed() -> None:
    """Zero lets the system choose, as tests do."""
    for listen in ("127.0.0.1:0", "[::1]:65535"):
        assert load({"listen": listen}, {}, None)[0].listen == listen


def test_the_names_of_flags_and_variables_follow_from_the_key() -> None:
    """One name, in three spellings."""
    assert (config.flag("log_level"), config.variable("log_level")) == ("--log-level", "AOSP_PLUGIN_LOG_LEVEL")


def test_a_configuration_can_not_be_changed() -> None:
    """It is read again as a whole, or not at all."""
    with pytest.raises(AttributeError):
        Config().verify = Verify.FILE  # type: ignore[misc]


@pytest.mark.parametrize("text", ["/dev\0", "/dev\n", "/dev\x7f", "/dev\x85", "/dev\udcff"])
@pytest.mark.parametrize("key", ["device_dir", "path_env", "listen"])
def test_what_can_not_be_printed_is_no_value(key: str, text: str) -> None:
    """A value goes into logs, paths and messages to the kubelet: control characters and bytes are refused."""
    with pytest.raises(ConfigError, match=f"flag {config.flag(key)}: .* is not allowed"):
        load({key: text}, {}, None)


def test_a_file_nested_beyond_reason_is_no_yaml(file: Path) -> None:
    """It is the file's mistake, and not a traceback."""
    with pytest.raises(ConfigError, match="is not YAML"):
        load({}, {}, write(file, "version: v1\nforget_after: " + "[" * 5000))


def test_a_shared_device_has_a_path(file: Path) -> None:
    """The word for the own binderfs stands for a directory, which is no device."""
    with pytest.raises(ConfigError, match="shared_devices"):
        load({}, {}, write(file, "version: v1\nshared_devices: ['binderfs:/dev/x']\n"))


@pytest.mark.parametrize("text", ["a:1_0", "a:\uff11", "a:-1", "a:65536", "a:", ":1"])
def test_a_port_is_a_number_in_plain_digits(text: str) -> None:
    """What int() takes beyond that is most likely a mistake."""
    with pytest.raises(ConfigError, match="flag --listen"):
        load({"listen": text}, {}, None)
