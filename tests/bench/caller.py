"""Calls of a plugin by a program in Go.

The kubelet is in Go, and a caller in Python costs more than what it measures.
"""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.e2e.common import golang

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULE: Final = Path(__file__).parent / "caller"
PATIENCE: Final = 60.0
"""The limit for all calls of one run of the program, in seconds."""


class Calls(NamedTuple):
    """The measured calls; times in seconds."""

    durations: list[float]
    """One for each call, in the order of the requests."""
    elapsed: float
    """From the start of the first call to the end of the last one."""


class CallError(Exception):
    """The plugin has failed a call, or not answered in time."""


def program() -> Path:
    """Return the program, which the first call builds. Raises MissingError without Go."""
    sources = [MODULE / "main.go"]
    return golang.build("bench-caller", MODULE, ".", sources=sources, fast=True) / "caller"


def call(
    caller: Path, socket: str, rpc: str, requests: Sequence[bytes], *, callers: int = 1, warm_up: int = 0
) -> Calls:
    """Call ``rpc`` of the plugin on a new connection with each of the encoded requests.

    The first ``warm_up`` requests are not measured; ``callers`` share the others. Raises CallError.
    """
    command = (caller, socket, rpc, str(callers), str(warm_up))
    try:
        result = subprocess.run(  # noqa: S603 - our own
            command, input=encode(requests), capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise CallError(f"{rpc}: no answer within {PATIENCE:.0f} s") from None
    if result.returncode != 0:
        raise CallError(f"{rpc}: {result.stderr.decode(errors='replace').strip()}")
    return decode(result.stdout)


def encode(requests: Sequence[bytes]) -> bytes:
    """Return the program's input: each request after its length."""
    return b"".join(struct.pack(">I", len(request)) + request for request in requests)


def decode(output: bytes) -> Calls:
    """Return the calls in the program's output, which has nanoseconds."""
    measured = json.loads(output)
    return Calls([duration / 1e9 for duration in measured["durations"]], measured["elapsed"] / 1e9)
