"""The supervisor, its kubelet and the files between them as a state machine: functions of states, without time or I/O.

``steps`` is what the plugin and the kubelet do by themselves, one thing at a time; what befalls them is in ``events``.

``tests/unit/deviceplugin/test_supervisor_model.py`` tries every order of them, and ``tests/integration/
test_supervisor_model.py`` has the same events befall the real supervisor and a kubelet, and compares.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Phase(enum.StrEnum):
    """What the supervisor is about."""

    WAITING = "waits for kubelet.sock"
    SERVING = "serves, and has not called Register yet"
    REGISTERING = "has called Register"
    REGISTERED = "is registered, and has no stream"
    STREAMING = "is registered, and its stream was opened"
    PAUSING = "pauses before the next try"
    STOPPED = "is stopped"


SERVED = frozenset({Phase.SERVING, Phase.REGISTERING, Phase.REGISTERED, Phase.STREAMING})
"""In which there is a server."""


class Socket(enum.StrEnum):
    """kubelet.sock, as the supervisor compares it."""

    ABSENT = "is not there"
    SAME = "is the one of the last Register"
    OTHER = "is another one"


class Manner(enum.StrEnum):
    """How the kubelet answers Register."""

    TAKES = "takes the plugin and opens a stream"
    REFUSES = "refuses"
    HANGS = "does not answer"
    MUTE = "takes the plugin and opens no stream"


class Call(enum.StrEnum):
    """What became of Register."""

    NONE = "none under way"
    OPEN = "not answered"
    TAKEN = "answered"
    FAILED = "failed"


class State(NamedTuple):
    """Everything that matters for what comes next."""

    phase: Phase = Phase.WAITING
    kubelet: bool = False
    """Whether a kubelet runs. It may be one whose kubelet.sock was removed."""
    sock: Socket = Socket.ABSENT
    manner: Manner = Manner.TAKES
    own: bool = False
    """Whether the plugin's socket is there."""
    call: Call = Call.NONE
    opening: bool = False
    """Whether the kubelet is about to open a stream."""
    stream: bool = False
    ended: bool = False
    """Whether a stream has ended that the plugin did not end."""
    lasted: bool = False
    """Whether the registration has lasted so long that its end is no further failure."""
    changed: bool = False
    """Whether it is with another kubelet than the one before."""
    known: bool = False
    """Whether there was a kubelet.sock when Register was called last."""
    fresh: bool = True
    """Whether there was no pause yet: the first one is none."""
    brief: bool = False
    """Whether the pause under way is none."""
    stopping: bool = False


def steps(state: State) -> Iterator[State]:
    """Yield the states that may be next without an event; none where all is quiet."""
    yield from _kubelet(state)
    plugin = _PLUGIN[state.phase](state)
    if plugin is not None:
        yield plugin


def _kubelet(state: State) -> Iterator[State]:
    if not state.kubelet:
        return
    if state.call is Call.OPEN:
        if state.manner is Manner.REFUSES:
            yield state._replace(call=Call.FAILED)
        elif state.manner in {Manner.TAKES, Manner.MUTE} and state.own:  # else it dials in vain, for long
            yield state._replace(call=Call.TAKEN, opening=state.manner is Manner.TAKES)
    # It may be there before the plugin has the answer to Register, and after.
    if state.opening:
        yield state._replace(opening=False, stream=True)


def _wait(state: State) -> State | None:
    if state.stopping:
        return state._replace(phase=Phase.STOPPED)
    if state.sock is Socket.ABSENT:
        return None
    return state._replace(phase=Phase.SERVING, own=True, lasted=False, ended=False)


def _serve(state: State) -> State:
    there = state.sock is not Socket.ABSENT
    reached = there and state.kubelet
    return state._replace(
        phase=Phase.REGISTERING,
        changed=state.sock is Socket.OTHER or there != state.known,
        known=there,
        sock=Socket.SAME if there else Socket.ABSENT,
        call=Call.OPEN if reached else Call.FAILED,
    )


def _keep(state: State) -> State | None:
    """Look for a sign that the registration is broken, and else for how far it has come."""
    broken = state.stopping or state.ended or not state.own or state.sock is Socket.OTHER
    if broken or state.call is Call.FAILED:
        return end(state)
    if state.call is Call.OPEN:
        return None
    phase = Phase.STREAMING if state.stream or state.phase is Phase.STREAMING else Phase.REGISTERED
    return state._replace(phase=phase) if phase is not state.phase else None


def end(state: State) -> State:
    """End the server, and with it stream and call."""
    return state._replace(
        phase=Phase.PAUSING,
        own=False,
        call=Call.NONE,
        opening=False,
        stream=False,
        ended=False,
        brief=state.changed or state.lasted or state.fresh,
        changed=False,
        lasted=False,
        fresh=False,
    )


def _pause(state: State) -> State | None:
    over = state.brief or state.stopping or state.sock is Socket.OTHER
    return state._replace(phase=Phase.WAITING, brief=False) if over else None


_PLUGIN: dict[Phase, Callable[[State], State | None]] = {
    Phase.WAITING: _wait,
    Phase.SERVING: _serve,
    Phase.REGISTERING: _keep,
    Phase.REGISTERED: _keep,
    Phase.STREAMING: _keep,
    Phase.PAUSING: _pause,
    Phase.STOPPED: lambda _: None,
}
