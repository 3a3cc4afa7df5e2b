"""The lines of ``demo --stay``: one for each event, with time and source."""

from __future__ import annotations

import datetime
import os
import sys
from typing import TYPE_CHECKING

import click

from aosp_plugin.cli.demo.phones import RESOURCE
from kubelet_standin import ContainerAllocation

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from kubelet_standin import Event

_COLORS = {"fault": "magenta", "kubelet": "cyan", "pod": "green", "scheduler": "yellow"}
_LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}

_NOT_FOR_FILES = "device allocated again without recreation"
"""What the plugin logs about devices that keep the user of their first context manager. Files keep nothing."""


class Screen:
    """Standard output."""

    def __init__(self, stopped: asyncio.Event) -> None:
        """Set ``stopped`` when the output has no reader any more."""
        self._stopped = stopped

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
        color = _COLORS.get(source) or _LEVELS.get(text.partition(" ")[0])
        self.write(f"{click.style(time, dim=True)}  {click.style(f'{source:9}', fg=color)} {text}")

    def log_line(self, source: str, text: str) -> None:
        """Print a line of a plugin's log without its time and the name of the only resource."""
        if _NOT_FOR_FILES in text:
            return
        _, separator, message = text.partition("Z ")
        self.line(source, (message if separator else text).replace(f" resource={RESOURCE}", ""))


class KubeletEvents:
    """Prints the events of the stand-in kubelet."""

    def __init__(self, screen: Screen, namespaces: Mapping[str, str]) -> None:
        """``namespaces`` has the namespace of each pod."""
        self.quiet = True
        """Whether pods that are admitted or end are not printed."""
        self._namespaces = namespaces
        self._screen = screen
        self._formats: Mapping[str, Callable[[Mapping[str, object]], tuple[str, str]]] = {
            "kubelet-started": lambda _: ("kubelet", "started"),
            "kubelet-stopped": lambda _: ("kubelet", "stopped"),
            "plugin-registered": lambda fields: ("kubelet", f"plugin registered: {fields['endpoint']}"),
            "plugin-refused": lambda fields: ("kubelet", f"registration refused: {fields['reason']}"),
            "stream-ended": lambda fields: ("kubelet", f"stream of {fields['endpoint']} ended: {fields['reason']}"),
            "devices-changed": lambda fields: (
                "kubelet",
                f"{RESOURCE}: capacity {fields['capacity']}, allocatable {fields['allocatable']}",
            ),
            "resource-forgotten": lambda fields: ("kubelet", f"{fields['resource']} forgotten: no plugin for too long"),
            "pod-rejected": lambda fields: ("pod", f"! {self._pod(fields)}: {fields['reason']}: {fields['message']}"),
            "container-failed": lambda fields: ("pod", f"! {self._pod(fields)}: {fields['message']}"),
            "container-allocated": self._allocated,
            "pod-removed": lambda fields: ("pod", f"- {self._pod(fields)}"),
        }

    def show(self, event: Event) -> None:
        """Print an event, if it is one of those that matter here."""
        form = self._formats.get(event.name)
        if form is None or (self.quiet and event.name in {"container-allocated", "pod-removed"}):
            return
        source, text = form(event.fields)
        self._screen.line(source, " ".join(text.split()))

    def _pod(self, fields: Mapping[str, object]) -> str:
        name = str(fields["pod"])
        return f"{self._namespaces.get(name, 'default')}/{name}"

    def _allocated(self, fields: Mapping[str, object]) -> tuple[str, str]:
        allocation = fields["allocation"]
        devices = allocation.device_ids[RESOURCE] if isinstance(allocation, ContainerAllocation) else ()
        return "pod", f"+ {self._pod(fields)} has {', '.join(devices)}"
