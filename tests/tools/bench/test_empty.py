"""The empty plugin, which other plugins are compared with."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
import tests.bench.empty
print(*sorted(sys.modules))
"""


def test_the_empty_plugin_loads_protobuf_and_nothing_of_this_project() -> None:
    """Otherwise it would become slower and larger with what it is compared with."""
    result = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True)  # noqa: S603 - our own
    loaded = result.stdout.split()
    assert {"grpc", "google.protobuf.message"} <= set(loaded)
    assert [name for name in loaded if name.startswith("aosp_plugin")] == []
