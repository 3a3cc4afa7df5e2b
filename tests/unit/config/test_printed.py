"""``aosp-plugin config``: what is printed is a file that gives the same configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin import config
from aosp_plugin.config import (
    KEYS,
    PROCESS_KEYS,
    RESOURCE_KEYS,
    Config,
    NamedSets,
    NumberedSets,
    Provision,
    Resource,
    load,
)
from aosp_plugin.config.setting import setting
from tests.unit.config.tables import write

if TYPE_CHECKING:
    from pathlib import Path


def test_the_printed_configuration_is_a_file_that_gives_the_same(file: Path, tmp_path: Path) -> None:
    """Behind each value stands where it came from; reading it again changes no value."""
    path = write(file, "version: v1\nmissing_device_ttl: 0.0000001\nshared_mounts: []\npath_env: 'a\"b\\c: #d'\n")
    made, settings_of = load({"verify": "probe"}, {"AOSP_PLUGIN_REQUIRE_DEVICES": "1"}, path)
    printed = config.as_yaml(settings_of)
    lines = printed.splitlines()
    assert lines[0] == "version: v1"
    assert lines[1:3] == ['resource_name: "aosp.io/binder"  # default', 'device_dir: "/dev"  # default']
    assert 'verify: "probe"  # flag --verify' in lines
    assert "require_devices: true  # variable AOSP_PLUGIN_REQUIRE_DEVICES" in lines
    assert f"shared_mounts: []  # file {path}: shared_mounts" in lines
    assert len(lines) == len(KEYS) + 1
    assert printed.endswith("\n")
    assert load({}, {}, write(tmp_path / "again.yaml", printed))[0] == made


RESOURCES = st.builds(
    Resource,
    device_dir=st.text(st.characters(min_codepoint=32, max_codepoint=126)).map(lambda text: f"/{text}"),
    path_env=st.text(st.sampled_from("abc \"'\\:#-{}[]é漢")),
    missing_device_ttl=st.floats(0, 1e300),
    shared_devices=st.lists(st.sampled_from(["/a", "/b:/c", "/d #e"]), max_size=3).map(tuple),
    sets=st.none()
    | st.builds(NumberedSets, size=st.integers(1, 64), stride=st.none() | st.integers(1, 999), first=st.integers(0, 9))
    | st.builds(NamedSets, names=st.just(("a", "b:#c")), pattern=st.just("x{set}'{name}")),
    numa=st.dictionaries(st.integers(0, 999_999_999).map(str), st.integers(0, 63), max_size=3),
)


@given(
    st.builds(Config, require_devices=st.booleans(), resources=st.lists(RESOURCES, min_size=1, max_size=3).map(tuple))
)
@settings(derandomize=True, deadline=None)
def test_any_configuration_survives_being_printed(made: Config) -> None:
    """Quotes, signs of comments and line ends are part of the value."""
    printed = config.as_yaml(as_settings(made))
    document = yaml.safe_load(printed)
    assert document.pop("version") == "v1"
    entries = document.pop("resources", [document])
    again = [{name: read(name, entry[name]) for name in RESOURCE_KEYS} for entry in entries]
    process = {name: read(name, value) for name, value in document.items() if name in PROCESS_KEYS}
    assert Config(**process, resources=tuple(Resource(**entry) for entry in again)) == made


def as_settings(made: Config) -> dict[str, config.Setting]:
    """Return what load would, for one resource at the top level and for more in a list."""
    process = {name: config.Setting(getattr(made, name), "x") for name in PROCESS_KEYS if name != "resources"}
    if len(made.resources) == 1:
        return process | {name: config.Setting(getattr(made.resources[0], name), "x") for name in RESOURCE_KEYS}
    return process | {
        f"resources[{i}].{name}": config.Setting(getattr(resource, name), "x")
        for i, resource in enumerate(made.resources)
        for name in RESOURCE_KEYS
    }


def read(name: str, value: Any) -> Any:
    """Return the value of a key as the configuration has it."""
    return setting(KEYS[name], value, "again").value


def test_printed_resources_are_a_list_with_the_source_of_each_value(file: Path, tmp_path: Path) -> None:
    """The process's keys come first, then each resource with all of its own, whoever set them."""
    path = write(
        file,
        "version: v1\nverify: file\nsets: {size: 3}\nnuma: {0-9: 1}\nresources:\n"
        "- {resource_name: a.io/x, device_prefix: x, provision: {count: 5, first: 2}}\n"
        "- {device_prefix: 'y', sets: {names: [binder]}, recreate: on-start, device_list: [cdi-cri]}\n",
    )
    made, settings_of = load({"isolation": "strict"}, {"AOSP_PLUGIN_PERMISSIONS": "rwm"}, path)
    printed = config.as_yaml(settings_of)
    lines = printed.splitlines()
    assert lines[:2] == ["version: v1", 'host_root: "/"  # default']
    start = lines.index("resources:")
    assert start == len(PROCESS_KEYS)
    assert len(lines) == start + 1 + 2 * len(RESOURCE_KEYS)
    assert lines[start + 1] == f'  - resource_name: "a.io/x"  # file {path}: resources[0].resource_name'
    assert lines[start + 2] == '    device_dir: "/dev"  # default'
    second = lines[start + 1 + len(RESOURCE_KEYS) :]
    assert second[0] == '  - resource_name: "aosp.io/binder"  # default'
    assert f'    verify: "file"  # file {path}: verify' in second
    assert '    isolation: "strict"  # flag --isolation' in second
    assert '    permissions: "rwm"  # variable AOSP_PLUGIN_PERMISSIONS' in second
    assert f'    recreate: "on-start"  # file {path}: resources[1].recreate' in second
    assert f'    numa: {{"0-9":1}}  # file {path}: numa' in second
    assert load({}, {}, write(tmp_path / "again.yaml", printed))[0] == made


def test_a_list_of_one_resource_is_printed_as_a_list(file: Path, tmp_path: Path) -> None:
    """Where its values stand in the file is told."""
    made, settings_of = load({}, {}, write(file, "version: v1\nresources: [{provision: {count: 5}}]\n"))
    printed = config.as_yaml(settings_of)
    assert (
        f'provision: {{"count":5,"max":null,"directory":"/run/aosp-binderfs/devices","first":0}}  # file {file}: '
        in printed
    )
    assert printed.count("  - ") == 1
    assert made.resources == (Resource(provision=Provision(count=5)),)
    assert load({}, {}, write(tmp_path / "again.yaml", printed))[0] == made


def test_a_file_with_an_odd_name_is_printed_as_well(tmp_path: Path) -> None:
    """What stands behind a value is a comment to the end of its line."""
    path = write(tmp_path / "a\nverify: b", "version: v1\nverify: file\n")
    made, settings_of = load({}, {}, path)
    printed = config.as_yaml(settings_of)
    assert load({}, {}, write(tmp_path / "again.yaml", printed))[0] == made
