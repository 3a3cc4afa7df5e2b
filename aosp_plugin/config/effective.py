"""The effective configuration as a file that gives it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aosp_plugin.config.process import FILE_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.config.setting import Setting


def as_yaml(settings: Mapping[str, Setting]) -> str:
    """Return a configuration file with every key, and behind each value where it comes from.

    ``settings`` is what ``load`` returns beside the configuration.
    """
    lines = [f"version: {FILE_VERSION}"]
    last = ""
    for place, setting in settings.items():
        entry, _, name = place.rpartition(".")
        if entry and not last:
            lines.append("resources:")
        indent = "" if not entry else "    " if entry == last else "  - "
        last = entry
        value = msgspec.json.encode(setting.value).decode()  # JSON is YAML, and stays on one line
        source = " ".join(setting.source.split())  # as must what stands behind it, whatever the file is called
        lines.append(f"{indent}{name}: {value}  # {source}")
    return "\n".join(lines) + "\n"
