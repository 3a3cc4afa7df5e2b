"""Loads the configuration from flags, environment variables and a file, and prints the effective one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from aosp_plugin.config.cross_field import validate_addresses, validate_cross_field
from aosp_plugin.config.keys import Setting
from aosp_plugin.config.messages import rejected, require_known, shown, similar
from aosp_plugin.config.process import DEFAULTS, FILE_VERSION, KEYS, PROCESS_KEYS, Config, status_address
from aosp_plugin.config.resource import COMMAND_DEFAULTS, PHONE_DEFAULTS, RESOURCE_KEYS, Resource
from aosp_plugin.config.values import ProvisionedBy
from aosp_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT_PREFIX = "AOSP_PLUGIN_"
_FILE_VARIABLE = f"{ENVIRONMENT_PREFIX}CONFIG"

Settings = dict[str, Setting]

_DEFAULTS = {name: Setting(value, "default") for name, value in DEFAULTS.items()}
_COMMAND_DEFAULTS = {
    name: Setting(value, f"default with provisioned_by: {ProvisionedBy.COMMAND}")
    for name, value in COMMAND_DEFAULTS.items()
}
_PHONE_DEFAULTS = {name: Setting(value, "default with phones") for name, value in PHONE_DEFAULTS.items()}


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None) -> tuple[Config, Settings]:
    """Return the effective configuration, and the value and source of each key.

    ``flags`` has None for a flag that was not given; ``file`` is the path of a configuration file. If the file lists
    resources, their keys are named by their position, for example ``resources[0].verify``. Raises ConfigError.
    """
    file = file or environment.get(_FILE_VARIABLE)
    top_level, entries = from_file(file) if file else ({}, [])
    overrides = from_environment(environment) | from_flags(flags)
    common = _with_defaults(top_level | overrides)
    resources = [_resource_settings(_with_defaults(top_level | entry | overrides)) for entry in entries or [{}]]
    process = {name: setting for name, setting in common.items() if name not in RESOURCE_KEYS}
    validate_cross_field(resources, file or "")
    config = Config(**_values(process), resources=tuple(Resource(**_values(settings)) for settings in resources))
    validate_addresses(process, status_address(config))
    if not entries:
        return config, common
    return config, process | {
        f"resources[{index}].{name}": setting
        for index, settings in enumerate(resources)
        for name, setting in settings.items()
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
    return ENVIRONMENT_PREFIX + name.upper()


def from_flags(flags: Mapping[str, Any]) -> Settings:
    """Return the settings of flags. Raises ConfigError."""
    given = {name: value for name, value in flags.items() if value is not None}
    return {name: KEYS[name].setting(value, f"flag {flag(name)}") for name, value in given.items()}


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Return the settings of AOSP_PLUGIN_* variables. Lists are separated by commas. Raises ConfigError."""
    settings: Settings = {}
    for variable_name, text in environment.items():
        if variable_name.startswith(ENVIRONMENT_PREFIX) and variable_name != _FILE_VARIABLE:
            name = _key_of_variable(variable_name)
            value = [part for part in text.split(",") if part] if isinstance(DEFAULTS[name], tuple) else text
            settings[name] = KEYS[name].setting(value, f"variable {variable_name}")
    return settings


def _key_of_variable(variable_name: str) -> str:
    names = {variable(name): name for name, key in KEYS.items() if key.variable}
    if variable_name in names:
        return names[variable_name]
    name = variable_name.removeprefix(ENVIRONMENT_PREFIX).lower()
    if name in KEYS or name in PROCESS_KEYS:
        raise ConfigError(f"variable {variable_name}: {name} can only be set in the configuration file")
    near = similar(name, names.values())
    hint = f"did you mean {variable(near)}?" if near else "docs/configuration.md lists all variables"
    raise ConfigError(f"variable {variable_name}: unknown variable; {hint}")


def from_file(path: str) -> tuple[Settings, list[Settings]]:
    """Return the settings of a configuration file: of its top level, and of each resource. Raises ConfigError."""
    document = _document(path)
    require_known(document, KEYS.keys() | PROCESS_KEYS.keys(), f"file {path}: ")
    has_entries = "resources" in document
    entries = document.pop("resources", [])
    top_level = {name: KEYS[name].setting(value, f"file {path}: {name}") for name, value in document.items()}
    source = f"file {path}: resources"
    if has_entries and not (isinstance(entries, list) and entries):
        raise rejected(source, entries, PROCESS_KEYS["resources"].allowed)
    return top_level, [_entry(entry, f"{source}[{index}]") for index, entry in enumerate(entries)]


def _document(path: str) -> dict[Any, Any]:
    """Return the mapping in the file, without its version."""
    from aosp_plugin.config.document import read_document  # noqa: PLC0415 - yaml takes a megabyte of memory

    document = read_document(path)
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
    phones, by = settings.get("phones"), settings.get("provisioned_by")
    defaults = _DEFAULTS
    if phones is not None and phones.value is not None:
        defaults = defaults | _PHONE_DEFAULTS
        if by is not None and by.value is ProvisionedBy.COMMAND:
            defaults = defaults | _COMMAND_DEFAULTS
    return defaults | settings


def _resource_settings(settings: Settings) -> Settings:
    return {name: settings[name] for name in RESOURCE_KEYS}


def _values(settings: Settings) -> dict[str, Any]:
    return {name: setting.value for name, setting in settings.items()}
