"""Fuzzes the configuration file: any bytes are a configuration that prints as an equal one, or an error of one line."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["aosp_plugin", "yaml"]):
    import yaml  # noqa: F401 - instrumented here, before the plugin imports it to read a file

    from aosp_plugin.config.sources import as_yaml, load
    from aosp_plugin.framework.errors import ConfigError

FILE = Path(tempfile.mkdtemp()) / "config.yaml"


def check(data: bytes) -> None:
    """Load bytes as a file. Raises any error that the plugin must not raise."""
    FILE.write_bytes(data)
    try:
        config, sources = load({}, {}, str(FILE))
    except ConfigError as error:
        require_one_line(str(error))
        return
    FILE.write_text(as_yaml(sources), encoding="utf-8")
    assert load({}, {}, str(FILE))[0] == config


def require_one_line(message: str) -> None:
    """Raise AssertionError for a message of several lines, or a very long one."""
    assert "\n" not in message, message
    assert len(message) < 5000, f"{len(message)} characters"


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
