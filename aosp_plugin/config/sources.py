"""Loads the configuration from flags, environment variables and a file, and prints the effective one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from aosp_plugin.config.convert import Setting, rejected, require_known, shown, shown_name, similar
from aosp_plugin.config.keys import (
    DEFAULTS,
    KEYS,
    PHONE_DEFAULTS,
    PROCESS_KEYS,
    RESOURCE_KEYS,
    Config,
    Resource,
    dependent_defaults,
)
from aosp_plugin.config.rules import ResourceEntry, validate, validate_addresses
from aosp_plugin.framework.errors import ConfigError

FILE_VERSION = "v1"

MAX_FILE = 256 << 10
"""Characters of a file. Its nodes take some hundred times as much memory."""
MAX_ITEMS = 256
"""Items of a list in a file: many of them are compared with each other."""
MAX_MERGED = 10_000
"""Keys that << merges in a file: their number may double with each line."""

NODE_VARIABLE = "NODE_NAME"
"""Environment variable with the name of the Kubernetes node. The host name that a container sees is that of its pod."""

_PREFIX = "AOSP_PLUGIN_"
FILE_VARIABLE = f"{_PREFIX}CONFIG"

_SERVICE_LINK = re.compile(r"AOSP_PLUGIN(_.+)?_(SERVICE_(HOST|PORT(_.+)?)|PORT(_.+)?)")
"""Matches the variables that a kubelet adds for Services such as one named aosp-plugin, and no variable of a key
(pkg/kubelet/envvars/envvars.go ``FromServices``). Without a Service's address, they are a mistake of the user."""

Settings = dict[str, Setting]


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None) -> tuple[Config, Settings]:
    """Return the effective configuration, and the value and source of each key.

    ``flags`` has None for a flag that was not given; ``file`` is the path of a configuration file. If the file lists
    resources, their keys are named by their position, for example ``resources[0].verify``. Raises ConfigError.
    """
    file = file or environment.get(FILE_VARIABLE)
    top_level, entries = _from_file(file) if file else ({}, [])
    overrides = _from_environment(environment) | _from_flags(flags)
    common = _with_defaults(top_level | overrides)
    process = {name: setting for name, setting in common.items() if name not in RESOURCE_KEYS}
    settings = [_with_defaults(top_level | entry | overrides) for entry in entries or [{}]]
    resources = [{name: every[name] for name in RESOURCE_KEYS} for every in settings]
    located = [ResourceEntry(Resource(**_values(resource)), _sources(resource)) for resource in resources]
    validate(located, file or "")
    config = Config(**_values(process), resources=tuple(entry.resource for entry in located))
    validate_addresses(config, _sources(process))
    if not entries:
        return config, common
    return config, process | {
        f"resources[{index}].{name}": setting
        for index, resource in enumerate(resources)
        for name, setting in resource.items()
    }


def as_yaml(settings: Mapping[str, Setting]) -> str:
    """Return the settings that ``load`` returned as a configuration file, with each source in a comment."""
    lines = [f"version: {FILE_VERSION}"]
    previous_entry = ""
    for place, setting in settings.items():
        entry, _, name = place.rpartition(".")
        if entry and not previous_entry:
            lines.append("resources:")
        indent = "" if not entry else "    " if entry == previous_entry else "  - "
        previous_entry = entry
        value = msgspec.json.encode(setting.value).decode()  # JSON is YAML on one line
        comment = " ".join(setting.source.split())  # the name of a file can contain a line break
        lines.append(f"{indent}{name}: {value}  # {comment}")
    return "\n".join(lines) + "\n"


def node_name() -> str:
    """Return the name of the Kubernetes node."""
    return os.environ.get(NODE_VARIABLE) or os.uname().nodename


def flag(name: str) -> str:
    """Return the flag of a key."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a key."""
    return _PREFIX + name.upper()


def _from_flags(flags: Mapping[str, Any]) -> Settings:
    given = {name: value for name, value in flags.items() if value is not None}
    return {name: KEYS[name].setting(value, f"flag {flag(name)}") for name, value in given.items()}


def _from_environment(environment: Mapping[str, str]) -> Settings:
    """Return the settings of AOSP_PLUGIN_* variables. Lists are separated by commas. Raises ConfigError."""
    settings: Settings = {}
    services = tuple(name.removesuffix("SERVICE_HOST") for name in environment if name.endswith("_SERVICE_HOST"))
    for variable_name, text in environment.items():
        is_link = _SERVICE_LINK.fullmatch(variable_name) and variable_name.startswith(services)
        if variable_name.startswith(_PREFIX) and variable_name != FILE_VARIABLE and not is_link:
            name = _key_of_variable(variable_name)
            value = [part for part in text.split(",") if part] if KEYS[name].is_list else text
            settings[name] = KEYS[name].setting(value, f"variable {variable_name}")
    return settings


def _key_of_variable(variable_name: str) -> str:
    names = {variable(name): name for name, key in KEYS.items() if key.variable}
    if variable_name in names:
        return names[variable_name]
    name = variable_name.removeprefix(_PREFIX).lower()
    if name in KEYS or name in PROCESS_KEYS:
        raise ConfigError(f"variable {variable_name}: {name} can only be set in the configuration file")
    near = similar(name, names.values())
    hint = f"did you mean {variable(near)}?" if near else "docs/configuration.md lists all variables"
    raise ConfigError(f"variable {variable_name}: unknown variable; {hint}")


def _from_file(path: str) -> tuple[Settings, list[Settings]]:
    """Return the settings of a configuration file: of its top level, and of each resource. Raises ConfigError."""
    document = _document(path)
    require_known(document, KEYS.keys() | PROCESS_KEYS.keys(), f"file {path}: ")
    entries = document.pop("resources", ())
    top_level = {name: KEYS[name].setting(value, f"file {path}: {name}") for name, value in document.items()}
    source = f"file {path}: resources"
    if entries != () and not (isinstance(entries, list) and entries):
        raise rejected(source, entries, PROCESS_KEYS["resources"].allowed)
    return top_level, [_entry(entry, f"{source}[{index}]") for index, entry in enumerate(entries)]


def _entry(entry: Any, place: str) -> Settings:
    if not isinstance(entry, dict):
        raise rejected(place, entry, "a mapping of resource keys")
    for name in entry:
        if name in PROCESS_KEYS:
            raise ConfigError(f"{place}.{name}: not a key of a resource; move it to the top level of the file")
    require_known(entry, RESOURCE_KEYS, f"{place}.")
    return {name: RESOURCE_KEYS[name].setting(value, f"{place}.{name}") for name, value in entry.items()}


def _with_defaults(settings: Settings) -> Settings:
    """Return the settings with the default of each other key, in the order of the keys."""
    defaults = {name: Setting(value, "default") for name, value in DEFAULTS.items()}
    for name, value in dependent_defaults(_values(settings)).items():
        key = "phones" if value == PHONE_DEFAULTS[name] else f"provisioned_by: {settings['provisioned_by'].value}"
        defaults[name] = Setting(value, f"default with {key}")
    return defaults | settings


def _values(settings: Settings) -> dict[str, Any]:
    return {name: setting.value for name, setting in settings.items()}


def _sources(settings: Settings) -> dict[str, str]:
    return {name: setting.source for name, setting in settings.items()}


def _document(path: str) -> dict[Any, Any]:
    """Return the mapping in the file, without its version."""
    document = _read(path)
    if not isinstance(document, dict):
        raise ConfigError(f"file {path}: a mapping of keys to values is required, with version: {FILE_VERSION}")
    if isinstance(document.get("config"), dict):
        raise ConfigError(f"file {path}: these are values of the chart: the configuration file is what is below config")
    if "version" not in document:
        raise ConfigError(f"file {path}: version: required key is missing; allowed: {FILE_VERSION}")
    version = document.pop("version")
    if version != FILE_VERSION:
        raise ConfigError(f"file {path}: version: {shown(version)} is not supported; allowed: {FILE_VERSION}")
    return document


class _Loader(yaml.SafeLoader):
    """Rejects what PyYAML reads in another way than its author means, and what would take minutes to check.

    PyYAML uses the last of several keys, takes 0120 for 80, and 1:30 for 90. A key that a mapping has and also merges
    by ``<<`` is not a duplicate.
    """

    merged = 0

    def compose_sequence_node(self, anchor: Any) -> yaml.SequenceNode:
        node = super().compose_sequence_node(anchor)
        if len(node.value) > MAX_ITEMS:
            raise _error(f"a list has {len(node.value)} items; allowed: at most {MAX_ITEMS}", node)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise _error(f"{shown_name(key.value)}: duplicate key", key)
            keys.add(key.value)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        own = len(node.value)
        super().flatten_mapping(node)
        self.merged += max(0, len(node.value) - own)
        if self.merged > MAX_MERGED:
            raise _error(f"more than {MAX_MERGED:,} keys are merged by <<", node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        try:
            return int(node.value, 0)
        except ValueError:
            raise _not_decimal(node) from None

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        if ":" in node.value:
            raise _not_decimal(node)
        return super().construct_yaml_float(node)


def _not_decimal(node: yaml.ScalarNode) -> yaml.MarkedYAMLError:
    return _error(f"{shown_name(node.value)}: write the number in decimal", node)


def _error(text: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, text, node.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def _read(path: str) -> Any:
    """Return the content of a YAML file. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise ConfigError(f"file {path}: it has more than {MAX_FILE >> 10} KiB")
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"file {path} cannot be read: {reason}") from error
    # In addition to its own errors, PyYAML lets through those of chr() and its tables for !!bool x and !!int "", and
    # RecursionError for [[[[...
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"file {path} is not valid YAML: {' '.join(str(error).split())}") from error
