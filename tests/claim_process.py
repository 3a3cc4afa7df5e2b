"""A process of a DRA driver that is killed before a chosen access to a file.

``ClaimProcesses`` starts ``python -m tests.claim_process``, which forks a process for each call. A process that runs
tests must not fork: gRPC's objects wait for threads when they are collected, which a child does not have.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Self

from tests.claims import Node, make_node, prepare

_KILLED: Final = 17
_DONE: Final = 0
_FAILED: Final = 1
_ROOT: Final = Path(__file__).parents[1]
_EVENTS: Final = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.listdir", "os.scandir"}
"""Each opening, renaming or removal of a file, as the audit events of Python report it."""


def _prepare(node: Node, uid: str, *ids: str) -> None:
    prepare(node, node.host(), uid, *ids)


def _unprepare(node: Node, uid: str) -> None:
    node.host().unprepare(uid)


def _repair(node: Node) -> None:
    node.host().repair()


_CALLS: Final[dict[str, Callable[..., None]]] = {"prepare": _prepare, "unprepare": _unprepare, "repair": _repair}


class ClaimProcesses:
    """Runs calls of a driver in processes of their own. To be used as a context."""

    def __enter__(self) -> Self:
        """Start the process that forks."""
        self._server = subprocess.Popen(  # noqa: S603 - our own module
            (sys.executable, "-m", __name__), cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._server.communicate()

    def killed_at(self, step: int, node: Node, call: str, *arguments: str) -> bool:
        """Run a call in a process that is killed before its access ``step`` below the node; return whether it was.

        ``call`` is prepare, unprepare or repair. Raises AssertionError if the call fails.
        """
        assert self._server.stdin
        assert self._server.stdout
        request = [str(node.root), sorted(node.backend.fail), step, call, *arguments]
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        assert status in {_KILLED, _DONE}, status
        return status == _KILLED


def serve(requests: Iterable[str]) -> None:
    """Run the call of each line in a child, and print its exit code."""
    for line in requests:
        pid = os.fork()
        if not pid:
            try:
                _run(*json.loads(line))
            finally:
                os._exit(_FAILED)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


def _run(root: str, fail: list[str], step: int, call: str, *arguments: str) -> None:
    """Make the call, and end this process without any cleanup."""
    node = make_node(Path(root))
    node.backend.fail = set(fail)
    steps = itertools.count(1)

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event in _EVENTS and str(details[0]).startswith(root) and next(steps) == step:
            os._exit(_KILLED)

    sys.addaudithook(hook)
    _CALLS[call](node, *arguments)
    os._exit(_DONE)


if __name__ == "__main__":
    serve(sys.stdin)
