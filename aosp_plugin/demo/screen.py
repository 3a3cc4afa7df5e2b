"""The lines of ``demo --stay``: one for each event, with time and source."""

import asyncio
import datetime
import os
import sys
from collections.abc import Mapping

import click

from aosp_plugin.demo.host import RESOURCE
from kubelet_standin import ContainerAllocation, Event

_COLORS = {"fault": "magenta", "kubelet": "cyan", "pod": "green", "WARNING": "yellow", "ERROR": "red"}

_EVENTS = {
    "kubelet-started": "started",
    "kubelet-stopped": "stopped",
    "plugin-registered": "plugin registered: {endpoint}",
    "stream-ended": "stream of {endpoint} ended: {reason}",
    "devices-changed": "{resource}: capacity {capacity}, allocatable {allocatable}",
}
"""What is printed of an event of the stand-in kubelet; other events are those of pods."""
_PODS = {
    "pod-rejected": "! {pod}: {reason}: {message}",
    "container-failed": "! {pod}: {message}",
    "container-allocated": "+ {pod} has {devices}",
    "pod-removed": "- {pod}",
}


class Screen:
    """Standard output."""

    def __init__(self, stopped: asyncio.Event, namespaces: Mapping[str, str]) -> None:
        """Set ``stopped`` when the output has no reader any more. ``namespaces`` has the namespace of each pod."""
        self.shows_pods = False
        """Whether pods that come and go are printed."""
        self._stopped = stopped
        self._namespaces = namespaces

    def write(self, text: str) -> None:
        """Print a text."""
        try:
            click.echo(text)
        except OSError:  # the reader of a pipe, or the terminal, is gone
            # The interpreter flushes standard output once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._stopped.set()

    def line(self, source: str, text: str) -> None:
        """Print what happened, now, at ``source``."""
        time = datetime.datetime.now().astimezone().strftime("%H:%M:%S")
        color = _COLORS.get(source) or _COLORS.get(text.partition(" ")[0])
        self.write(f"{click.style(time, dim=True)}  {click.style(f'{source:9}', fg=color)} {text}")

    def log_line(self, text: str) -> None:
        """Print a line of the plugin's log without its time and the name of the only resource."""
        _, separator, message = text.partition("Z ")
        self.line("plugin", (message if separator else text).replace(f" resource={RESOURCE}", ""))

    def event(self, event: Event) -> None:
        """Print an event of the stand-in kubelet, if it is one of those that matter here."""
        fields = dict(event.fields)
        if event.name in _EVENTS:
            self.line("kubelet", _EVENTS[event.name].format(**fields))
        elif event.name in _PODS and self.shows_pods:
            fields["pod"] = f"{self._namespaces.get(str(fields['pod']), 'default')}/{fields['pod']}"
            if isinstance(allocation := fields.get("allocation"), ContainerAllocation):
                fields["devices"] = ", ".join(allocation.device_ids[RESOURCE])
            self.line("pod", " ".join(_PODS[event.name].format(**fields).split()))
