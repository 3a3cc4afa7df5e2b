"""What others reach of a simulated process besides its sockets: its HTTP routes, and what it says on the Node."""

import contextlib
import types
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any

from tests.simulation.processes import System, current

LASTING = 10.0
"""Seconds from which the plugin reports a condition by an Event, in place of a minute: few faults last so long."""


def _listened(_address: tuple[str, int]) -> Any:
    """Return what can be closed: each process has an address of its own, as each pod has."""
    return types.SimpleNamespace(close=bool)


@contextlib.contextmanager
def _serving(_listener: Any, routes: Mapping[str, Any], _names: Collection[str]) -> Iterator[None]:
    """See ``http.serving``."""
    process, served = current(), System.host.routes
    served.setdefault(process, {}).update(routes)
    try:
        yield
    finally:
        served.pop(process, None)


def _at_once(function: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Any]:
    """Return a function that calls ``function``, which waits for nothing: see ``http.in_loop``."""

    def call() -> Any:
        work = function()
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("a route waits")

    return call


def _token_hex(size: int) -> str:
    return System.host.rng.randbytes(size).hex()


MODULES = {"secrets": types.SimpleNamespace(token_hex=_token_hex)}
EDGES: dict[str, Callable[[Any], Mapping[str, Any]]] = {
    "framework.service.address": lambda _: {"listen": _listened},
    "framework.service.http": lambda _: {"serving": _serving, "in_loop": _at_once},
    "report.node_events": lambda _: {"LASTING": LASTING},
}
"""See ``system.LOADER``."""
