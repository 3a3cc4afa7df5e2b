"""The surroundings of a device plugin or DRA driver: clock, metrics, conditions and file events of its process."""

from dataclasses import dataclass, field

from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.file_events import FileEvents
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.timing import CLOCK, DEFAULT, Clock, Timings


@dataclass(frozen=True)
class Runtime:
    """The surroundings of the servers of one process, which share them. Belongs to one event loop."""

    metrics: Metrics = field(default_factory=Metrics)
    conditions: Conditions = field(default_factory=Conditions)
    files: FileEvents | None = None
    """File events, which the caller closes; None if each server has its own."""
    timings: Timings = DEFAULT
    clock: Clock = CLOCK
