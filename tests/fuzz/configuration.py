"""Bytes as a configuration file: a configuration, which prints as a file that gives it again, or a mistake in a line.

``tests/unit/config/test_any_document.py`` says the same of documents that hypothesis makes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["aosp_plugin", "yaml"]):
    import yaml  # noqa: F401 - the plugin imports it when it reads a file, which is too late

    from aosp_plugin.config import as_yaml, load
    from aosp_plugin.errors import ConfigError

FILE = Path(tempfile.mkdtemp()) / "config.yaml"


def check(data: bytes) -> None:
    """Read bytes as a file. Raises what the plugin should not."""
    FILE.write_bytes(data)
    try:
        made, sources = load({}, {}, str(FILE))
    except ConfigError as error:
        require_a_line(str(error))
        return
    FILE.write_text(as_yaml(sources), encoding="utf-8")
    assert load({}, {}, str(FILE))[0] == made


def require_a_line(complaint: str) -> None:
    """Raise AssertionError where a mistake is told in more."""
    assert "\n" not in complaint, complaint
    assert len(complaint) < 5000, f"{len(complaint)} characters"


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
