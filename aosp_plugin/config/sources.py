"""Loads the configuration from flags, environment variables and a file, and prints the effective one."""

from __future__ import annotations

import itertools
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

_NOT_DECIMAL = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Numbers that YAML 1.1 reads with the base 8 or 60."""

NODE_VARIABLE = "NODE_NAME"
"""Environment variable with the name of the Kubernetes node. The host name that a container sees is that of its pod."""

_PREFIX = "AOSP_PLUGIN_"
_FILE_VARIABLE = f"{_PREFIX}CONFIG"

_SERVICE_HOST = "_SERVICE_HOST"
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_.+)?)|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?")
"""The rest of the names of a Service's variables, after its own name (pkg/kubelet/envvars/envvars.go
``FromServices``)."""

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
    ignored = {_FILE_VARIABLE, *_service_links(environment)}
    for variable_name, text in environment.items():
        if variable_name.startswith(_PREFIX) and variable_name not in ignored:
            name = _key_of_variable(variable_name)
            value = [part for part in text.split(",") if part] if KEYS[name].is_list else text
            settings[name] = KEYS[name].setting(value, f"variable {variable_name}")
    return settings


def _service_links(environment: Mapping[str, str]) -> set[str]:
    """Return the names of the variables that a kubelet has added for Services, such as one named aosp-plugin.

    A Service has at least three: its address, the number of its first port, and the URL of that port.
    """
    services = [name.removesuffix(_SERVICE_HOST) for name in environment if name.endswith(_SERVICE_HOST)]
    return {
        name
        for service in services
        if f"{service}_SERVICE_PORT" in environment and "://" in environment.get(f"{service}_PORT", "")
        for name in environment
        if name.startswith(service) and _SERVICE_LINK.fullmatch(name, len(service))
    }


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


def _read(path: str) -> Any:
    """Return the content of a YAML file. Raises ConfigError."""

    class Loader(yaml.SafeLoader):
        merged = 0

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            for key, value in [pair for pair in node.value if pair[0].tag.endswith(":merge")]:
                for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(each, yaml.MappingNode):
                        self.flatten_mapping(each)
                        self.merged += len(each.value)
                    if self.merged > MAX_MERGED:
                        line = key.start_mark.line + 1
                        raise ConfigError(f"file {path}: line {line}: more than {MAX_MERGED:,} keys are merged by <<")
            super().flatten_mapping(node)

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise ConfigError(f"file {path}: it has more than {MAX_FILE >> 10} KiB")
        loader = Loader(text)
        node = loader.get_single_node()
        _check_nodes(loader, node, path)
        return None if node is None else loader.construct_document(node)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"file {path} cannot be read: {reason}") from error
    # In addition to its own errors, PyYAML lets through those of int(), chr() and its tables for 0x_, !!bool x and
    # !!int "", and RecursionError for [[[[...
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"file {path} is not valid YAML: {' '.join(str(error).split())}") from error


def _check_nodes(loader: yaml.SafeLoader, root: yaml.Node | None, path: str) -> None:
    """Raise ConfigError for duplicate keys, for numbers that are not decimal, and for a list that is too long.

    PyYAML would use the last of several keys, and read octal numbers, without an error. A key that a mapping has and
    also merges by ``<<`` is not a duplicate: that is what ``<<`` is for. So the nodes are compared before keys are
    merged into them.
    """
    nodes, visited = [root], set[yaml.Node | None]()
    for node in nodes:
        if isinstance(node, yaml.SequenceNode) and node not in visited:
            if len(node.value) > MAX_ITEMS:
                raise ConfigError(
                    f"file {path}: a list in line {node.start_mark.line + 1} has {len(node.value)} items; "
                    f"allowed: at most {MAX_ITEMS}"
                )
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
        elif (
            isinstance(node, yaml.ScalarNode)
            and node.tag.endswith((":int", ":float"))
            and _NOT_DECIMAL.fullmatch(node.value)
        ):
            line, kind = node.start_mark.line + 1, "of base 60" if ":" in node.value else "octal"
            text = f"{shown_name(node.value)} is {kind} in YAML: write the number in decimal"
            raise ConfigError(f"file {path}: line {line}: {text}")
        visited.add(node)
