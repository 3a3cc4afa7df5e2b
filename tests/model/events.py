"""External events of the supervisor's model, and the states that are reachable by them.

An event may come between any two steps. One of the events is time: all running deadlines and pauses are then over.
"""

import enum
from collections.abc import Callable, Iterable

from tests.model.supervisor import SERVED, Call, Manner, Phase, Socket, State, end, steps


class Event(enum.StrEnum):
    """An event that may come at any moment."""

    SWEEPS = "a starting kubelet removes all sockets"
    STARTS = "the starting kubelet creates kubelet.sock"
    DIES = "the kubelet dies without removing kubelet.sock"
    VANISHES = "kubelet.sock is removed"
    RECREATED = "kubelet.sock is recreated without removing other sockets"
    TAKES = "the kubelet accepts plugins from now on"
    REFUSES = "the kubelet refuses plugins from now on"
    HANGS = "the kubelet does not answer plugins from now on"
    MUTE = "the kubelet accepts plugins from now on, but does not request their devices"
    DROPS = "the kubelet ends the stream"
    SWEPT = "the plugin's socket is removed"
    TIME = "time passes: every deadline and every pause is over"
    STOP = "the plugin is asked to stop"


def happen(event: Event, state: State) -> State | None:
    """Return the state after an event; None if it cannot happen."""
    return _EVENTS[event](state)


def _sweeps(state: State) -> State | None:
    return None if state.kubelet else state._replace(sock=Socket.ABSENT, own=False)


def _starts(state: State) -> State | None:
    return None if state.kubelet else state._replace(kubelet=True, sock=Socket.OTHER)


def _dies(state: State) -> State | None:
    if not state.kubelet:
        return None
    call = Call.FAILED if state.call is Call.OPEN else state.call
    ended = state.ended or state.stream
    return state._replace(kubelet=False, call=call, opening=False, stream=False, ended=ended)


def _vanishes(state: State) -> State | None:
    return None if state.sock is Socket.ABSENT else state._replace(sock=Socket.ABSENT)


def _recreated(state: State) -> State | None:
    return None if state.sock is Socket.ABSENT else state._replace(sock=Socket.OTHER)


def _drops(state: State) -> State | None:
    return state._replace(stream=False, ended=True) if state.stream else None


def _swept(state: State) -> State | None:
    return state._replace(own=False) if state.own else None


def _time(state: State) -> State | None:
    """Let the current deadline or pause pass. The supervisor detects a missing stream; Register ends by itself."""
    if state.phase is Phase.PAUSING:
        return state._replace(brief=True)
    if state.call is Call.OPEN:
        return state._replace(call=Call.FAILED, lasted=True)
    if state.phase is Phase.REGISTERED and not state.stream:
        return end(state._replace(lasted=True))
    return state._replace(lasted=True) if state.phase in SERVED else None


def _behaves(manner: Manner) -> Callable[[State], State | None]:
    return lambda state: None if state.manner is manner else state._replace(manner=manner)


_EVENTS: dict[Event, Callable[[State], State | None]] = {
    Event.SWEEPS: _sweeps,
    Event.STARTS: _starts,
    Event.DIES: _dies,
    Event.VANISHES: _vanishes,
    Event.RECREATED: _recreated,
    Event.TAKES: _behaves(Manner.TAKES),
    Event.REFUSES: _behaves(Manner.REFUSES),
    Event.HANGS: _behaves(Manner.HANGS),
    Event.MUTE: _behaves(Manner.MUTE),
    Event.DROPS: _drops,
    Event.SWEPT: _swept,
    Event.TIME: _time,
    Event.STOP: lambda state: None if state.stopping else state._replace(stopping=True),
}


def reachable(states: Iterable[State], events: Iterable[Event] = ()) -> set[State]:
    """Return the states that are reachable from ``states`` by steps and by ``events`` in any order."""
    found, todo, allowed = set(states), list(states), list(events)
    while todo:
        state = todo.pop()
        after = [*steps(state), *(new for event in allowed if (new := happen(event, state)) is not None)]
        added = [new for new in after if new not in found]
        found.update(added)
        todo += added
    return found


def quiet(states: Iterable[State]) -> set[State]:
    """Return the states without a next step."""
    return {state for state in states if next(steps(state), None) is None}
