"""``python -m tests.e2e.cluster.figures.in_guest SOCKET CLAIM...``: latencies of a driver in a guest.

Each claim is NAME/UID. Prints a JSON object: the number of file systems that the claims had at once, and for each
kind of call the seconds until the answers, and how often all were made. A call of the kinds ``alone`` starts when the
one before has ended; those of the kinds ``at once`` start together, and those that fail are repeated together, as the
kubelet repeats them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster.figures.calls import Caller, at_once, in_turn
from tests.e2e.cluster.figures.claims import NAMESPACE, Claim
from tests.e2e.kernel.phones import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable

_ALONE: Final = 20
_REPETITIONS: Final = 10


def main(socket: str, *names: str) -> None:
    """Prepare and unprepare some of the claims one by one, then all at once, and print what was measured."""
    claims = [Claim(NAMESPACE, *name.split("/")) for name in names]
    measured: dict[str, tuple[list[float], int]] = {}
    with Caller(Path(socket)) as caller:
        in_turn(caller.prepare, claims[:1])  # the first call also connects
        in_turn(caller.unprepare, claims[:1])
        for kind, method in (("prepare", caller.prepare), ("unprepare", caller.unprepare)):
            measured[f"{kind} alone"] = in_turn(method, claims[:_ALONE]), 1
        measured["prepare at once"] = _until_done(caller.prepare, claims)
        mounted = len({path.stat().st_dev for path in Path(DIRECTORY).iterdir()})
        measured["unprepare at once"] = _until_done(caller.unprepare, claims)
    sys.stdout.write(json.dumps({"calls": measured, "mounted": mounted}))


def _until_done(method: Callable[[Claim], Any], claims: list[Claim]) -> tuple[list[float], int]:
    """Call a method for all claims until none fails; return the seconds of the first calls, and the repetitions."""
    batch = at_once(method, claims)
    first, repetitions = batch.latencies, 1
    while batch.failed:
        assert repetitions < _REPETITIONS, batch.failed[0]
        batch = at_once(method, claims)
        repetitions += 1
    return first, repetitions


if __name__ == "__main__":
    main(*sys.argv[1:])
