"""Flags, variables and the file: precedence, errors of each, and the printed configuration."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from aosp_plugin.config.keys import DEFAULTS, KEYS, PROCESS_KEYS, RESOURCE_KEYS
from aosp_plugin.config.sources import as_yaml, load
from aosp_plugin.framework.errors import ConfigError
from tests.unit.config.tables import EXAMPLES, REQUIRED, error_of, value_of, write


def as_text(value: Any) -> str:
    """Return a value as it is written in a variable or flag, which have texts only in their lists."""
    return (
        ",".join(part for part in value if isinstance(part, str))
        if isinstance(value, list)
        else yaml.safe_dump(value).split("\n")[0].strip("'")
    )


def test_each_key_is_read_from_each_source(file: Path) -> None:
    for name, key in KEYS.items():
        required = REQUIRED.get(name, "")
        path = write(file, f"version: v1\n{required}{name}: {key.example}\n")
        expected = key.setting(EXAMPLES[name], "").value
        text = as_text(EXAMPLES[name])
        variable = f"AOSP_PLUGIN_{name.upper()}"
        sources: list[tuple[dict[str, Any], dict[str, str], str | None, str]] = [
            ({}, {}, path, f"file {path}: {name}"),
            ({}, {"AOSP_PLUGIN_CONFIG": path}, None, f"file {path}: {name}"),
            *([({}, {variable: text}, None, f"variable {variable}")] if key.variable else []),
        ]
        if key.flag:
            given_value = True if expected is True else text
            sources.append(({name: given_value}, {}, None, f"flag --{name.replace('_', '-')}"))
        for flags, environment, config_file, source in sources:
            if variable in environment and name == "shared_devices":
                expected = tuple(part for part in expected if isinstance(part, str))
            current, effective = load(flags, environment, config_file)
            assert value_of(current, name) == expected != DEFAULTS[name]
            assert type(value_of(current, name)) is type(expected)
            assert effective[name] == (expected, source)
            others = {setting.source for key, setting in effective.items() if key not in {name, required[:4]}}
            assert others == ({"default", "default with phones"} if name == "phones" else {"default"})


def test_precedence_is_flag_variable_file_default(file: Path, tmp_path: Path) -> None:
    """The file that a flag names replaces the file that the variable names."""
    path = write(file, "version: v1\nverify: file\nlog_level: error\nisolation: strict\ndevice_dir: /дев\n")
    ignored = write(tmp_path / "ignored.yaml", "version: v1\nisolation: nonsense\n")
    environment = {
        "AOSP_PLUGIN_CONFIG": ignored,
        "AOSP_PLUGIN_VERIFY": "binder",
        "AOSP_PLUGIN_LOG_LEVEL": "warning",
    }
    _, effective = load({"verify": "probe"}, environment, path)
    assert [effective[name] for name in ("verify", "log_level", "isolation", "log_format")] == [
        ("probe", "flag --verify"),
        ("warning", "variable AOSP_PLUGIN_LOG_LEVEL"),
        ("strict", f"file {path}: isolation"),
        ("text", "default"),
    ]
    assert effective["device_dir"].value == "/дев"
    assert list(effective) == list(KEYS)


def test_invalid_value_is_an_error_even_if_it_is_overridden(file: Path) -> None:
    with pytest.raises(ConfigError, match="verify: 'deep' is not allowed"):
        load({"verify": "char"}, {}, write(file, "version: v1\nverify: deep\n"))


def test_unknown_key_suggests_a_similar_one(file: Path) -> None:
    """Keys that are not text are unknown, too."""
    for key, hint in (
        ("resource-name", "did you mean resource_name?"),
        ("resource", "did you mean resources?"),
        ("1", f"the keys are {', '.join(sorted([*KEYS, 'resources']))}"),
        ("2024-01-01", "the keys are allowed_hosts, "),
    ):
        assert error_of(file, f"version: v1\n{key}: a.io/b\n").startswith(f"{key}: unknown key; {hint}")


def test_unknown_variable_suggests_a_similar_one() -> None:
    for variable, hint in (
        ("AOSP_PLUGIN_RESOURCE_NAM", r"did you mean AOSP_PLUGIN_RESOURCE_NAME\?"),
        ("AOSP_PLUGIN_XYZZY", "docs/configuration.md lists all variables"),
    ):
        with pytest.raises(ConfigError, match=f"^variable {variable}: unknown variable; {hint}$"):
            load({}, {variable: "a.io/b"}, None)


def test_empty_parts_of_a_list_in_a_variable_are_ignored() -> None:
    current, _ = load({}, {"AOSP_PLUGIN_SHARED_DEVICES": "/dev/a,,/dev/b,"}, None)
    assert current.resources[0].shared_devices == ("/dev/a", "/dev/b")


def test_invalid_file_is_one_line(file: Path) -> None:
    for text, error in (
        ("", "a mapping of keys to values is required, with version: v1"),
        ("- verify\n", "a mapping of keys to values is required"),
        ("verify: file\n", "version: required key is missing; allowed: v1"),
        ("version: null\n", "version: null is not supported; allowed: v1"),
        ("version: !!python/object:os.system v1\n", " is not valid YAML: "),
    ):
        assert error_of(file, text).startswith(error)
    assert "line 2" in error_of(file, "version: [v1\n")


def test_unreadable_file_is_named(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"version: v1\npath_env: \xff\n")
    for path, reason in (
        (tmp_path / "none", "No such file or directory$"),
        (file, "it is not text in UTF-8$"),
        (tmp_path, "Is a directory$"),
    ):
        with pytest.raises(ConfigError, match=f"^file {path} cannot be read: {reason}"):
            load({}, {}, str(path))


def test_values_of_the_chart_are_not_a_configuration_file(file: Path) -> None:
    for text in ("config: {version: v1, phones: {count: 3}}\nimage: {tag: x}\n", "version: v1\nconfig: {}\n"):
        with pytest.raises(ConfigError, match=rf"^file {file}: these are values of the chart: .* below config$"):
            load({}, {}, write(file, text))


def test_printed_configuration_has_the_source_of_each_value_and_loads_as_the_same(file: Path, tmp_path: Path) -> None:
    """A list of one resource stays a list; a line break in the name of the file stays in the comment."""
    several = """\
sets: {size: 3}
numa: {0-9: 1}
resources:
- {resource_name: a.io/x, sets: null, phones: {count: 5, directory: /srv/p}}
- {device_prefix: y, sets: {names: [binder]}, recreate: on-start, device_list: [cdi-cri]}
"""
    for name, text, resources in (
        ("several", several, 2),
        ("list-of-one", "resources: [{phones: {count: 5}}]", 1),
        ("a\nverify: b", "missing_device_ttl: 0.0000001\nshared_mounts: []\npath_env: 'a\"b\\c: #d'", 0),
    ):
        path = write(tmp_path / name, f"version: v1\n{text}\n")
        current, effective = load({"isolation": "strict"}, {}, path)
        printed = as_yaml(effective)
        assert load({}, {}, write(file, printed))[0] == current
        assert printed.count("  - ") == resources
        lines = printed.splitlines()
        if resources:
            assert lines.index("resources:") == len(PROCESS_KEYS)
            assert len(lines) == len(PROCESS_KEYS) + 1 + resources * len(RESOURCE_KEYS)
            assert '    isolation: "strict"  # flag --isolation' in lines
        if name == "several":
            assert f'  - resource_name: "a.io/x"  # file {path}: resources[0].resource_name' in lines
            assert f'    numa: {{"0-9":1}}  # file {path}: numa' in lines


def test_duplicate_key_is_an_error(file: Path) -> None:
    """At any level. YAML libraries take the last one, which may undo a security setting."""
    for text, name, line in (
        ("verify: binder\nlisten: ''\nverify: char", "verify", 4),
        ("resources:\n- verify: binder\n  verify: char", "verify", 4),
        ("sets:\n  size: 3\n  ? size\n  : 4", "size", 4),
        ("resources: [{<<: {verify: binder}, <<: {verify: char}}]", "<<", 2),
    ):
        error = error_of(file, f"version: v1\n{text}\n")
        assert error.startswith(f" is not valid YAML: {name}: duplicate key "), error
        assert f", line {line}, column " in error


def test_number_that_yaml_does_not_read_as_decimal_is_an_error(file: Path) -> None:
    """YAML 1.1 takes 0120 for 80, and 1:30 for 90."""
    for text, number in (
        ("phones: {count: 0120}", "0120"),
        ("missing_device_ttl: 1:30", "1:30"),
    ):
        error = error_of(file, f"version: v1\n{text}\n")
        assert error.startswith(f" is not valid YAML: {number}: write the number in decimal "), error
    for text in ("missing_device_ttl: 0.5", "missing_device_ttl: 0", "phones: {count: 0x78}", "device_prefix: 'b0120'"):
        assert error_of(file, f"version: v1\n{text}\n") == ""


def test_merged_key_may_be_overridden(file: Path) -> None:
    """That is what << is for, also if a mapping is merged that itself overrides a merged key."""
    text = """
version: v1
resources:
- &first {resource_name: a.io/a, device_prefix: a, verify: char}
- &second {<<: *first, resource_name: a.io/b, device_prefix: b, verify: binder}
- {<<: *second, resource_name: a.io/c, device_prefix: c}
"""
    resources = load({}, {}, write(file, text))[0].resources
    assert [resource.verify for resource in resources] == ["char", "binder", "binder"]


LAUGHS = "\n".join(f"- &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12))
HOSTILE = [
    *("missing_device_ttl: !!int ''", "node_events: !!bool perhaps", "listen: !!timestamp soon"),
    f"missing_device_ttl: 1{':1' * 200}.0",
    'listen: "\\UFFFFFFFF"',
    'listen: "\\uD800"',
    f"? {'x' * 10_000}\n: 1",
    "resources: &a [*a]",
    "&a sets: {*a : 1}",
    f"numa: {{0x{'f' * 5000}: 1}}",
    f"replicas: {'9' * 5000}",
    "verify: " + "[" * 5000,
    "device_dir: " + "x" * 100_000,
    f"resources:\n- &l0 [x]\n{LAUGHS}",
    *("? [a, b]\n: c", "<<: [1]"),
]


MERGED = "\n".join(f"- &m{i} {{<<: [*m{i - 1}, *m{i - 2}], device_prefix: p{i}}}" for i in range(2, 40))


WIDE = dict.fromkeys((f"key{i}" for i in range(100)), 1)


def test_large_file_is_an_error(file: Path) -> None:
    """Its checks would take minutes, and more memory than the container has."""
    for text, error in (
        (f"# {'x' * 300_000}", "it has more than 256 KiB"),
        (f"resources:\n- &m0 {{verify: char}}\n- &m1 {{<<: *m0}}\n{MERGED}", "more than 10,000 keys are merged by <<"),
        (f"resources:\n- &m0 {WIDE}\n" + "- {<<: *m0}\n" * 200, "more than 10,000 keys are merged by <<"),
        (f"resources: [{'{}, ' * 257}]", "a list has 257 items; allowed: at most 256"),
    ):
        assert error in error_of(file, f"version: v1\n{text}\n")


def test_hostile_document_is_an_error(file: Path) -> None:
    """The error is short and immediate, however large the document expands."""
    for text in HOSTILE:
        assert 0 < len(error_of(file, f"version: v1\n{text}\n")) < 5000
