"""An event reaches each observer."""

from __future__ import annotations

from aosp_plugin.framework.observer import Observer, Observers


class Counting(Observer):
    """Records the requests that were answered."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, float]] = []

    def answered(self, rpc: str, code: str, seconds: float) -> None:
        """Record a request."""
        self.requests.append((rpc, code, seconds))


class CountingStreams(Counting):
    """Records streams, too."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[int, bool]] = []

    def sent(self, size: int, *, first: bool) -> None:
        """Record a message."""
        self.messages.append((size, first))


def test_event_reaches_each_observer() -> None:
    requests, streams = Counting(), CountingStreams()
    observers = Observers(Observer(), Observers(requests, streams), Observers(streams))
    observers.answered("Allocate", "OK", 0.5)
    observers.sent(7, first=True)
    observers.stream_opened()
    assert requests.requests == [("Allocate", "OK", 0.5)]
    assert streams.requests == [("Allocate", "OK", 0.5)] * 2
    assert streams.messages == [(7, True)] * 2
