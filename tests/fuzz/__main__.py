"""``python -m tests.fuzz SECONDS [TARGET]...``: run each target for so long, from the inputs that were kept before.

Those are in build/fuzz/<target>, and an input that breaks something is put beside them. The exit code is then 1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.common.report import say
from tests.fuzz import seeds

if TYPE_CHECKING:
    from collections.abc import Callable

TARGETS: Final[dict[str, Callable[[], tuple[list[bytes], list[bytes]]]]] = {
    "configuration": seeds.of_configuration,
    "wire": seeds.of_wire,
}
WORK: Final = Path("build/fuzz")
SHOWN: Final = 60
"""Lines of what a target printed that are shown where it found something."""


def fuzz(target: str, seconds: int) -> bool:
    """Run one target, say how many inputs were tried, and whether all of them went well."""
    corpus = WORK / target
    corpus.mkdir(parents=True, exist_ok=True)
    inputs, words = TARGETS[target]()
    for number, data in enumerate(inputs):
        (corpus / f"seed-{number}").write_bytes(data)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/tmp") as made:
        dictionary = Path(made) / "words"
        dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in words))
        arguments = (f"-max_total_time={seconds}", f"-dict={dictionary}", f"-artifact_prefix={WORK}/{target}-")
        more = ("-max_len=4096", "-timeout=20", "-rss_limit_mb=1024", "-print_final_stats=1")
        done = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", f"tests.fuzz.{target}", *arguments, *more, str(corpus)],
            env=os.environ | {"TMPDIR": made, "GRPC_VERBOSITY": "NONE"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    tried = re.search(r"number_of_executed_units: +([0-9]+)", done.stderr)
    covered = re.findall(r"cov: ([0-9]+)", done.stderr)
    say(f"{target}: {tried[1] if tried else '?'} inputs in {seconds} s, coverage {covered[-1] if covered else '?'}")
    if done.returncode:
        say("\n".join(f"  {line[:200]}" for line in (done.stdout + done.stderr).splitlines()[-SHOWN:]))
    return done.returncode == 0


def _escaped(word: bytes) -> str:
    """Return the word as libFuzzer's dictionaries have it."""
    return "".join(chr(one) if chr(one).isalnum() else f"\\x{one:02x}" for one in word)


def main(seconds: str, *targets: str) -> int:
    """Run the targets, and return the exit code."""
    went_well = {fuzz(target, int(seconds)) for target in targets or TARGETS}
    return 0 if went_well == {True} else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
