"""Where values come from: flags, environment variables and the file, and which of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aosp_plugin.config.cross_field import validate_cross_field
from aosp_plugin.config.process import DEFAULTS, FILE_VERSION, KEYS, PROCESS_KEYS, Config
from aosp_plugin.config.resource import RESOURCE_KEYS, Resource
from aosp_plugin.config.setting import Setting, listed, refused, require_known, setting, shown
from aosp_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT_PREFIX = "AOSP_PLUGIN_"

Settings = dict[str, Setting]

_DEFAULTS = {name: Setting(value, "default") for name, value in DEFAULTS.items()}


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None
) -> tuple[Config, dict[str, Setting]]:
    """Return the effective configuration, and each key's value and source.

    ``flags`` has the flags that were given; ``file`` is a path. Where the file lists resources, their keys are named
    by their place in it, as in ``resources[0].verify``. Raises ConfigError.
    """
    file = file or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    top, entries = from_file(file) if file else ({}, [])
    given = from_environment(environment) | from_flags(flags)
    common = _DEFAULTS | top | given
    resources = [_of_resource(_DEFAULTS | top | entry | given) for entry in entries or [{}]]
    process = {name: one for name, one in common.items() if name not in RESOURCE_KEYS}
    validate_cross_field(resources, file or "")
    made = Config(**_values(process), resources=tuple(Resource(**_values(one)) for one in resources))
    if not entries:
        return made, common
    places = {f"resources[{i}].{name}": one for i, entry in enumerate(resources) for name, one in entry.items()}
    return made, process | places


def flag(name: str) -> str:
    """Return the flag of a key."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a key."""
    return ENVIRONMENT_PREFIX + name.upper()


def from_flags(flags: Mapping[str, Any]) -> Settings:
    """Read the flags that were given. Raises ConfigError."""
    return {name: setting(KEYS[name], value, f"flag {flag(name)}") for name, value in flags.items()}


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Pick the keys out of the environment; lists have commas between their parts. Raises ConfigError."""
    settings: Settings = {}
    names = {variable(name): name for name, key in KEYS.items() if key.variable}
    for found, text in environment.items():
        if not found.startswith(ENVIRONMENT_PREFIX) or found == f"{ENVIRONMENT_PREFIX}CONFIG":
            continue
        if found not in names:
            raise ConfigError(f"variable {found}: there is no such key; the variables are {listed(names)}")
        name = names[found]
        value = [part for part in text.split(",") if part] if isinstance(DEFAULTS[name], tuple) else text
        settings[name] = setting(KEYS[name], value, f"variable {found}")
    return settings


def from_file(path: str) -> tuple[Settings, list[Settings]]:
    """Read a YAML file that says ``version: v1``: its top level, and each of its resources. Raises ConfigError."""
    document = _document(path)
    require_known(document, KEYS.keys() | PROCESS_KEYS.keys(), f"file {path}: ")
    has_entries = "resources" in document
    entries = document.pop("resources", [])
    top = {name: setting(KEYS[name], value, f"file {path}: {name}") for name, value in document.items()}
    source = f"file {path}: resources"
    if has_entries and not (isinstance(entries, list) and entries):
        raise refused(source, entries, PROCESS_KEYS["resources"].allowed)
    return top, [_entry(entry, f"{source}[{i}]") for i, entry in enumerate(entries)]


def _document(path: str) -> dict[Any, Any]:
    """Return the file's mapping without its version."""
    import yaml  # noqa: PLC0415 - a megabyte, and many a plugin runs without a file

    try:
        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"file {path} can't be read: {error}") from error
    # Beyond its own errors PyYAML lets out what int(), chr() and its tables raise over 0x_, !!bool x, !!int "", and
    # Python over [[[[...
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"file {path}: a mapping of keys to values is expected, with version: {FILE_VERSION}")
    version = document.pop("version", None)
    if version != FILE_VERSION:
        raise ConfigError(f"file {path}: version: {shown(version)} is not known; allowed: {FILE_VERSION}")
    return document


def _entry(entry: Any, place: str) -> Settings:
    if not isinstance(entry, dict):
        raise refused(place, entry, "a mapping with keys of a resource")
    for name in entry:
        if name in PROCESS_KEYS:
            raise ConfigError(
                f"{place}.{name}: it is the whole process's, not one resource's; it belongs to the file's top level"
            )
    require_known(entry, RESOURCE_KEYS, f"{place}.")
    return {name: setting(RESOURCE_KEYS[name], value, f"{place}.{name}") for name, value in entry.items()}


def _of_resource(settings: Settings) -> Settings:
    return {name: settings[name] for name in RESOURCE_KEYS}


def _values(settings: Settings) -> dict[str, Any]:
    return {name: one.value for name, one in settings.items()}
