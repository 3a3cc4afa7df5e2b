"""The configuration: every key with its default and what it may be, and where its value comes from.

A flag wins over an environment variable, that over an entry of the file's ``resources``, that over the top level of
the file, and that over the default. The structs ``Config`` and ``Resource`` are the only lists of the keys: the flags
of ``serve``, the AOSP_PLUGIN_* variables, the checks, ``aosp-plugin config`` and the JSON Schema all follow from them.
What a key does is none of this package's business.
"""

from aosp_plugin.config.effective import as_yaml
from aosp_plugin.config.json_schema import schema
from aosp_plugin.config.keys import Key
from aosp_plugin.config.process import DEFAULTS, FILE_VERSION, KEYS, PROCESS_KEYS, Config
from aosp_plugin.config.resource import RESOURCE_KEYS, NamedSets, NumberedSets, Provision, Resource
from aosp_plugin.config.setting import Setting
from aosp_plugin.config.sources import flag, load, variable
from aosp_plugin.config.values import Recreate, shared_path
from aosp_plugin.framework.device_list import DeviceList
from aosp_plugin.framework.service.address import listen_address

__all__ = [
    "DEFAULTS",
    "FILE_VERSION",
    "KEYS",
    "PROCESS_KEYS",
    "RESOURCE_KEYS",
    "Config",
    "DeviceList",
    "Key",
    "NamedSets",
    "NumberedSets",
    "Provision",
    "Recreate",
    "Resource",
    "Setting",
    "as_yaml",
    "flag",
    "listen_address",
    "load",
    "schema",
    "shared_path",
    "variable",
]
