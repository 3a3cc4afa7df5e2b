"""The configuration: keys with defaults and allowed values, the sources of their values, and validation.

A flag takes precedence over an environment variable, then come the entry in the file's ``resources``, the top level of
the file, and the default. The structs ``Config`` and ``Resource`` are the only list of the keys: the flags of
``serve``, the AOSP_PLUGIN_* variables, validation, ``aosp-plugin config``, the JSON Schema and docs/configuration.md
follow from them. ``Config`` and ``Resource`` are frozen, and are used as they are.
"""

from aosp_plugin.config.convert import Key, descriptions, keys_of, shown
from aosp_plugin.config.keys import (
    COMMAND_DEFAULTS,
    DEFAULTS,
    KEYS,
    PHONE_DEFAULTS,
    PROCESS_KEYS,
    RESOURCE_KEYS,
    Config,
    NamedSets,
    NumberedSets,
    Phones,
    Provision,
    Resource,
    SharedDevice,
    shared_device,
    status_address,
)
from aosp_plugin.config.sources import as_yaml, flag, load, variable
from aosp_plugin.config.values import OWN_BINDERFS, Api, Isolation, ProvisionedBy, Recreate, shared_path

__all__ = [
    "COMMAND_DEFAULTS",
    "DEFAULTS",
    "KEYS",
    "OWN_BINDERFS",
    "PHONE_DEFAULTS",
    "PROCESS_KEYS",
    "RESOURCE_KEYS",
    "Api",
    "Config",
    "Isolation",
    "Key",
    "NamedSets",
    "NumberedSets",
    "Phones",
    "Provision",
    "ProvisionedBy",
    "Recreate",
    "Resource",
    "SharedDevice",
    "as_yaml",
    "descriptions",
    "flag",
    "keys_of",
    "load",
    "shared_device",
    "shared_path",
    "shown",
    "status_address",
    "variable",
]
