"""Loads the configuration from flags, environment variables and a file, and prints the effective one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from aosp_plugin.config.convert import Setting, rejected, require_known, shown, shown_name, similar
from aosp_plugin.config.keys import (
    COMMAND_DEFAULTS,
    DEFAULTS,
    KEYS,
    PHONE_DEFAULTS,
    PROCESS_KEYS,
    RESOURCE_KEYS,
    Config,
    Resource,
)
from aosp_plugin.config.rules import ResourceEntry, validate, validate_addresses
from aosp_plugin.config.values import ProvisionedBy
from aosp_plugin.framework.errors import ConfigError

if TYPE_CHECKING:
    import yaml

FILE_VERSION = "v1"

_PREFIX = "AOSP_PLUGIN_"
_FILE_VARIABLE = f"{_PREFIX}CONFIG"

Settings = dict[str, Setting]


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None) -> tuple[Config, Settings]:
    """Return the effective configuration, and the value and source of each key.

    ``flags`` has None for a flag that was not given; ``file`` is the path of a configuration file. If the file lists
    resources, their keys are named by their position, for example ``resources[0].verify``. Raises ConfigError.
    """
    file = file or environment.get(_FILE_VARIABLE)
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
    for variable_name, text in environment.items():
        if variable_name.startswith(_PREFIX) and variable_name != _FILE_VARIABLE:
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
    phones, by = settings.get("phones"), settings.get("provisioned_by")
    if phones is not None and phones.value is not None:
        defaults |= {name: Setting(value, "default with phones") for name, value in PHONE_DEFAULTS.items()}
        if by is not None and by.value is ProvisionedBy.COMMAND:
            source = f"default with provisioned_by: {by.value}"
            defaults |= {name: Setting(value, source) for name, value in COMMAND_DEFAULTS.items()}
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


def _read(path: str) -> Any:
    """Return the content of a YAML file. Raises ConfigError."""
    import yaml  # noqa: PLC0415 - takes a megabyte of memory

    try:
        with open(path, encoding="utf-8") as file:
            loader = yaml.SafeLoader(file)
            node = loader.get_single_node()
        _require_unique_keys(loader, node, path)
        return None if node is None else loader.construct_document(node)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"file {path} cannot be read: {reason}") from error
    # In addition to its own errors, PyYAML lets through those of int(), chr() and its tables for 0x_, !!bool x and
    # !!int "", and RecursionError for [[[[...
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"file {path} is not valid YAML: {' '.join(str(error).split())}") from error


def _require_unique_keys(loader: yaml.SafeLoader, root: yaml.Node | None, path: str) -> None:
    """Raise ConfigError if a mapping has a key twice: PyYAML would use the last one.

    A key that a mapping has itself and also merges by ``<<`` is no duplicate: that is what ``<<`` is for. So the nodes
    are compared before keys are merged into them.
    """
    import yaml  # noqa: PLC0415 - see above

    nodes, visited = [root], set[yaml.Node | None]()
    for node in nodes:
        if isinstance(node, yaml.SequenceNode) and node not in visited:
            nodes += node.value
        elif isinstance(node, yaml.MappingNode) and node not in visited:
            nodes += itertools.chain.from_iterable(node.value)
            lines: dict[Any, int] = {}
            for key_node in (key_node for key_node, _ in node.value if isinstance(key_node, yaml.ScalarNode)):
                # The text of << and =, which cannot be constructed by themselves.
                is_text = key_node.tag.endswith((":merge", ":value"))
                key = key_node.value if is_text else loader.construct_object(key_node, deep=True)
                line = key_node.start_mark.line + 1
                if key in lines:
                    raise ConfigError(f"file {path}: {shown_name(key)}: duplicate key; lines {lines[key]} and {line}")
                lines[key] = line
        visited.add(node)
