"""Calls of Allocate by a program in Go.

The kubelet is in Go, and a caller in Python costs more than what it measures.
"""

import json
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.common import golang

MODULE: Final = Path(__file__).parent / "caller"
PATIENCE: Final = 60.0
"""The limit for all calls of one run of the program, in seconds."""


class CallError(Exception):
    """The plugin has failed a call, or not answered in time."""


def program() -> Path:
    """Return the program, which the first call builds. Raises MissingError without Go."""
    sources = [MODULE / "main.go"]
    return golang.build("bench-caller", MODULE, ".", sources=sources, fast=True) / "caller"


def call(caller: Path, socket: str, requests: Sequence[bytes], *, warm_up: int = 0) -> list[float]:
    """Call Allocate on a new connection with each of the encoded requests; return the seconds of each call.

    The first ``warm_up`` requests are not measured. Raises CallError.
    """
    encoded = b"".join(struct.pack(">I", len(request)) + request for request in requests)
    try:
        result = subprocess.run(  # noqa: S603 - our own
            (caller, socket, str(warm_up)), input=encoded, capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise CallError(f"no answer within {PATIENCE:.0f} s") from None
    if result.returncode != 0:
        raise CallError(result.stderr.decode(errors="replace").strip())
    return [nanoseconds / 1e9 for nanoseconds in json.loads(result.stdout)]
