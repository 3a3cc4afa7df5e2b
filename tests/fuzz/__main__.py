"""``python -m tests.fuzz SECONDS [TARGET]...``: run each target for some seconds, from the inputs of earlier runs.

The inputs are in build/fuzz/<target>. An input that fails is stored beside that directory, and the exit code is 1.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.e2e.common.report import say
from tests.fuzz import seeds

TARGETS: Final[dict[str, Callable[[], tuple[list[bytes], list[bytes]]]]] = {
    "configuration": seeds.of_configuration,
    "wire": seeds.of_wire,
}
WORK: Final = Path("build/fuzz")
OUTPUT_LINES: Final = 60
"""Lines of a target's output that are printed after a failure."""


def fuzz(target: str, seconds: int) -> bool:
    """Run a target, print the number of inputs, and return whether all passed."""
    corpus = WORK / target
    corpus.mkdir(parents=True, exist_ok=True)
    seed_inputs, words = TARGETS[target]()
    for number, data in enumerate(seed_inputs):
        (corpus / f"seed-{number}").write_bytes(data)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/tmp") as temporary:
        dictionary = Path(temporary) / "words"
        dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in words))
        arguments = (f"-max_total_time={seconds}", f"-dict={dictionary}", f"-artifact_prefix={WORK}/{target}-")
        limits = ("-max_len=4096", "-timeout=20", "-rss_limit_mb=1024", "-print_final_stats=1")
        result = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", f"tests.fuzz.{target}", *arguments, *limits, str(corpus)],
            env=os.environ | {"TMPDIR": temporary, "GRPC_VERBOSITY": "NONE"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    executed = re.search(r"number_of_executed_units: +([0-9]+)", result.stderr)
    covered = re.findall(r"cov: ([0-9]+)", result.stderr)
    count = executed[1] if executed else "?"
    say(f"{target}: {count} inputs in {seconds} s, coverage {covered[-1] if covered else '?'}")
    if result.returncode:
        say("\n".join(f"  {line[:200]}" for line in (result.stdout + result.stderr).splitlines()[-OUTPUT_LINES:]))
    return result.returncode == 0


def _escaped(word: bytes) -> str:
    """Return a word in the syntax of libFuzzer's dictionaries."""
    return "".join(chr(byte) if chr(byte).isalnum() else f"\\x{byte:02x}" for byte in word)


def main(seconds: str, *targets: str) -> int:
    """Run the targets, and return the exit code."""
    passed = {fuzz(target, int(seconds)) for target in targets or TARGETS}
    return 0 if passed == {True} else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
