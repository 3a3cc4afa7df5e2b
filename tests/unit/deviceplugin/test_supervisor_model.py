"""The model of the supervisor recovers from every order of events.

``tests/integration/test_supervisor_model.py`` compares the model with the supervisor.
"""

from __future__ import annotations

import functools

from tests.model.events import Event, happen, quiet, reachable
from tests.model.supervisor import Call, Manner, Phase, Socket, State, steps

MAX_WAITS = 1
"""A deadline or pause that is already running may have to pass, but no further one."""


@functools.cache
def all_states() -> frozenset[State]:
    """Return all reachable states."""
    return frozenset(reachable([State()], Event))


def healed(state: State) -> State:
    """Return the state after a kubelet has started that accepts plugins."""
    state = state._replace(manner=Manner.TAKES)
    if state.kubelet and state.sock is Socket.ABSENT:
        state = happen(Event.DIES, state) or state
    return state if state.kubelet else started(state)


def started(state: State) -> State:
    """Return the state after a kubelet has started."""
    for event in (Event.SWEEPS, Event.STARTS):
        after = happen(event, state)
        assert after is not None
        state = after
    return state


def is_recovered(state: State) -> bool:
    """Return whether the plugin is registered with the running kubelet, with an open stream."""
    return state.phase is Phase.STREAMING and state.kubelet and state.stream and state.own and not state.ended


def waits_until_recovered(state: State) -> int:
    """Return how many deadlines and pauses pass before the recovery, in the worst order of steps."""
    waits: dict[State, int] = {}
    path: set[State] = set()

    def waits_from(current: State) -> int:
        if current in waits:
            return waits[current]
        assert current not in path, f"endless loop at {current}"
        path.add(current)
        following = list(steps(current))
        if following:
            waits[current] = max(map(waits_from, following))
        elif is_recovered(current):
            waits[current] = 0
        else:
            later = happen(Event.TIME, current)
            assert later is not None, f"no further step at {current}"
            waits[current] = 1 + waits_from(later)
        path.discard(current)
        return waits[current]

    return waits_from(state)


def test_every_phase_is_reachable() -> None:
    assert {state.phase for state in all_states()} == set(Phase)
    assert len(all_states()) > 5000


def test_every_state_recovers_when_the_faults_end() -> None:
    """At most one deadline or pause has to pass, in any order of steps."""
    for state in all_states():
        if not state.stopping:
            assert waits_until_recovered(healed(state)) <= MAX_WAITS, state


def test_new_kubelet_gets_the_devices_without_any_wait() -> None:
    """A new kubelet.sock ends every pause and every deadline."""
    for state in all_states():
        if not (state.kubelet or state.stopping) and state.manner is Manner.TAKES:
            assert waits_until_recovered(started(state)) == 0, state


def test_stable_registration_is_with_the_running_kubelet() -> None:
    for state in quiet(all_states()):
        if state.phase in {Phase.REGISTERED, Phase.STREAMING}:
            assert (state.call, state.own, state.sock is Socket.OTHER) == (Call.TAKEN, True, False), state
            assert is_recovered(state) == (state.phase is Phase.STREAMING), state


def test_every_phase_stops_without_a_wait() -> None:
    for state in all_states():
        if state.stopping:
            for end in quiet(reachable([state])):
                assert (end.phase, end.own, end.stream) == (Phase.STOPPED, False, False), state
