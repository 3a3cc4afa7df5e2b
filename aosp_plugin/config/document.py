"""Reads the YAML of a configuration file. Duplicate keys are errors: the YAML library would use the last one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from aosp_plugin.config.messages import shown_name
from aosp_plugin.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"
_VALUE = "tag:yaml.org,2002:value"


def read_document(path: str) -> Any:
    """Return the content of a configuration file. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            return yaml.load(file, _Loader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"file {path} cannot be read: {reason}") from error
    except _DuplicateKeyError as error:
        raise ConfigError(f"file {path}: {error}") from error
    # In addition to its own errors, PyYAML lets through those of int(), chr() and its tables for 0x_, !!bool x and
    # !!int "", and RecursionError for [[[[...
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"file {path} is not valid YAML: {' '.join(str(error).split())}") from error


class _DuplicateKeyError(Exception):
    """A mapping has a key twice. The text names the key, and the lines of both."""


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses mappings with duplicate keys.

    A key that a mapping has itself and also merges by ``<<`` is no duplicate: that is what ``<<`` is for. So the keys
    are compared when the mapping is read, before keys are merged into it.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Read a mapping. Raises _DuplicateKeyError, and the errors of values that are not valid."""
        node = super().compose_mapping_node(anchor)
        lines: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                key, line = self._key(key_node), key_node.start_mark.line + 1
                if key in lines:
                    raise _DuplicateKeyError(f"{shown_name(key)}: duplicate key; lines {lines[key]} and {line}")
                lines[key] = line
        return node

    def _key(self, node: yaml.ScalarNode) -> Hashable:
        if node.tag in {_MERGE, _VALUE}:
            return str(node.value)
        key = self.construct_object(node, deep=True)
        return key if isinstance(key, Hashable) else id(node)
