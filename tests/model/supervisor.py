"""A state machine of the supervisor, its kubelet and their sockets, without time or I/O.

``steps`` returns what the plugin and the kubelet do next by themselves; ``events`` has the external events.

``tests/unit/deviceplugin/test_supervisor_model.py`` checks every order of steps and events;
``tests/integration/test_supervisor_model.py`` compares the model with the real supervisor.
"""

import enum
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Phase(enum.StrEnum):
    """What the supervisor is doing."""

    WAITING = "waits for kubelet.sock"
    SERVING = "serves, before Register"
    REGISTERING = "has called Register"
    REGISTERED = "is registered, and has no stream"
    STREAMING = "is registered, and its stream was opened"
    PAUSING = "pauses before the next attempt"
    STOPPED = "is stopped"


SERVED = frozenset({Phase.SERVING, Phase.REGISTERING, Phase.REGISTERED, Phase.STREAMING})
"""The phases with a server."""


class Socket(enum.StrEnum):
    """The state of kubelet.sock, compared with that of the last Register."""

    ABSENT = "does not exist"
    SAME = "is the same"
    OTHER = "is another file"


class Manner(enum.StrEnum):
    """How the kubelet answers Register."""

    TAKES = "accepts the plugin and opens a stream"
    REFUSES = "refuses"
    HANGS = "does not answer"
    MUTE = "accepts the plugin but opens no stream"


class Call(enum.StrEnum):
    """The state of the Register call."""

    NONE = "no call"
    OPEN = "not answered"
    TAKEN = "answered"
    FAILED = "failed"


class State(NamedTuple):
    """Everything on which the next step depends."""

    phase: Phase = Phase.WAITING
    kubelet: bool = False
    """Whether a kubelet runs, even if its kubelet.sock was removed."""
    sock: Socket = Socket.ABSENT
    manner: Manner = Manner.TAKES
    own: bool = False
    """Whether the plugin's socket exists."""
    call: Call = Call.NONE
    opening: bool = False
    """Whether the kubelet is about to open a stream."""
    stream: bool = False
    ended: bool = False
    """Whether a stream has ended unexpectedly."""
    lasted: bool = False
    """Whether the registration has lasted so long that its end does not count as a failure."""
    changed: bool = False
    """Whether the registration is with another kubelet than the last one."""
    known: bool = False
    """Whether kubelet.sock existed at the last Register."""
    fresh: bool = True
    """Whether there was no pause yet; the first one has no duration."""
    brief: bool = False
    """Whether the current pause has no duration."""
    stopping: bool = False


def steps(state: State) -> Iterator[State]:
    """Yield the possible next states without an event; none if nothing happens without one."""
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
        elif (
            state.manner in {Manner.TAKES, Manner.MUTE} and state.own
        ):  # otherwise, it dials a missing socket for seconds
            yield state._replace(call=Call.TAKEN, opening=state.manner is Manner.TAKES)
    # The stream may open before and after the plugin has the response of Register.
    if state.opening:
        yield state._replace(opening=False, stream=True)


def _wait(state: State) -> State | None:
    if state.stopping:
        return state._replace(phase=Phase.STOPPED)
    if state.sock is Socket.ABSENT:
        return None
    return state._replace(phase=Phase.SERVING, own=True, lasted=False, ended=False)


def _serve(state: State) -> State:
    exists = state.sock is not Socket.ABSENT
    reached = exists and state.kubelet
    return state._replace(
        phase=Phase.REGISTERING,
        changed=state.sock is Socket.OTHER or exists != state.known,
        known=exists,
        sock=Socket.SAME if exists else Socket.ABSENT,
        call=Call.OPEN if reached else Call.FAILED,
    )


def _keep(state: State) -> State | None:
    """Detect a failed registration, or return its next phase."""
    broken = state.stopping or state.ended or not state.own or state.sock is Socket.OTHER
    if broken or state.call is Call.FAILED:
        return end(state)
    if state.call is Call.OPEN:
        return None
    phase = Phase.STREAMING if state.stream or state.phase is Phase.STREAMING else Phase.REGISTERED
    return state._replace(phase=phase) if phase is not state.phase else None


def end(state: State) -> State:
    """End the server, and with it the stream and the call."""
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
