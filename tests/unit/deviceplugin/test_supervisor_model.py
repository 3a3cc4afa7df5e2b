"""Every order of events that can befall the supervisor: it comes to an open stream as soon as the faults stop.

Of the model; that the supervisor is like it is held in ``tests/integration/test_supervisor_model.py``.
"""

from __future__ import annotations

import functools

from tests.model.events import Event, happen, quiet, reachable
from tests.model.supervisor import Call, Manner, Phase, Socket, State, steps

MOST_WAITS = 1
"""How often time has to pass: for a deadline or a pause that runs already, and none after that."""


@functools.cache
def everything() -> frozenset[State]:
    """Return all states that there are."""
    return frozenset(reachable([State()], Event))


def healed(state: State) -> State:
    """Return the state once a kubelet runs that takes plugins, behind a kubelet.sock that is there."""
    state = state._replace(manner=Manner.TAKES)
    if state.kubelet and state.sock is Socket.ABSENT:
        state = happen(Event.DIES, state) or state
    return state if state.kubelet else started(state)


def started(state: State) -> State:
    """Return the state once a kubelet has started where none runs."""
    for event in (Event.SWEEPS, Event.STARTS):
        after = happen(event, state)
        assert after is not None
        state = after
    return state


def is_whole(state: State) -> bool:
    """Say whether the plugin is registered with the kubelet that is there, over a stream that is open."""
    return state.phase is Phase.STREAMING and state.kubelet and state.stream and state.own and not state.ended


def waits_until_whole(state: State) -> int:
    """Return how often time has to pass until all is whole, in the worst order of steps."""
    found: dict[State, int] = {}
    under_way: set[State] = set()

    def of(one: State) -> int:
        if one in found:
            return found[one]
        assert one not in under_way, f"it goes round in circles at {one}"
        under_way.add(one)
        after = list(steps(one))
        if after:
            found[one] = max(of(new) for new in after)
        elif is_whole(one):
            found[one] = 0
        else:
            later = happen(Event.TIME, one)
            assert later is not None, f"nothing ever happens any more at {one}"
            found[one] = 1 + of(later)
        under_way.discard(one)
        return found[one]

    return of(state)


def test_every_phase_can_be_reached() -> None:
    """Or the rest would say nothing of it; there are thousands of states."""
    assert {state.phase for state in everything()} == set(Phase)
    assert len(everything()) > 5000


def test_from_every_state_it_comes_to_an_open_stream_when_the_faults_stop() -> None:
    """In every order of steps, and with at most one deadline or pause to wait for."""
    for state in everything():
        if not state.stopping:
            assert waits_until_whole(healed(state)) <= MOST_WAITS, state


def test_a_kubelet_that_starts_is_never_waited_for() -> None:
    """With a new kubelet.sock no pause is waited out, and no deadline: whatever had happened before."""
    for state in everything():
        if not (state.kubelet or state.stopping) and state.manner is Manner.TAKES:
            assert waits_until_whole(started(state)) == 0, state


def test_where_all_is_quiet_a_registration_is_the_kubelet_s_own() -> None:
    """Nobody is told ready over a stream that has ended, a socket that is gone or a kubelet that is another one."""
    for state in quiet(everything()):
        if state.phase in {Phase.REGISTERED, Phase.STREAMING}:
            assert (state.call, state.own, state.sock is Socket.OTHER) == (Call.TAKEN, True, False), state
            assert is_whole(state) == (state.phase is Phase.STREAMING), state


def test_whatever_it_is_about_it_stops_at_once() -> None:
    """No deadline and no pause is waited for, and the socket is removed."""
    for state in everything():
        if state.stopping:
            for end in quiet(reachable([state])):
                assert (end.phase, end.own, end.stream) == (Phase.STOPPED, False, False), state
