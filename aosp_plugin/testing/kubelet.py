"""The stand-in itself: a kubelet's device manager on real sockets, seen from the kubelet's side."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from aosp_plugin.testing import directory as disk
from aosp_plugin.testing.admission import Admission
from aosp_plugin.testing.behaviour import Behaviour
from aosp_plugin.testing.checkpoint import FILE_NAME, Checkpoint
from aosp_plugin.testing.faults import Faults
from aosp_plugin.testing.plugins import Plugins, Settings
from aosp_plugin.testing.registration import Registration, RegistrationService
from aosp_plugin.testing.resources import Books, Listing, ResourceView
from aosp_plugin.testing.socket_server import Listener, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from aosp_plugin.testing.pods import AdmittedPod, ContainerAllocation, Pod

GRACE_PERIOD: Final = 300.0
DIAL_TIMEOUT: Final = 10.0
MAX_MESSAGE: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class _Run:
    """What lives from one start to the stop after it."""

    books: Books
    plugins: Plugins
    admission: Admission
    listener: Listener


class Kubelet:
    """A kubelet's device manager. An async context manager; belongs to one event loop."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        behaviour: Behaviour = Behaviour.NEW,
        seed: int = 0,
        grace_period: float = GRACE_PERIOD,
        clock: Callable[[], float] = time.monotonic,
        max_message: int = MAX_MESSAGE,
        dial_timeout: float = DIAL_TIMEOUT,
        checkpoints: bool = True,
    ) -> None:
        """Prepare a kubelet over ``directory``, which it makes at the start.

        - ``seed`` decides all that Go leaves to chance.
        - ``grace_period``: a resource whose plugin has been gone for longer is forgotten; in seconds
          of ``clock``.
        - ``max_message``: bytes in the largest message that a plugin may send.
        - ``dial_timeout``: seconds that a plugin has to accept its connection.
        - ``checkpoints=False`` neither reads nor writes the checkpoint, whose checksum takes time (some 10 ms
          for 10,000 devices).

        KubeletDirectoryError if the directory's path is too long for a socket.
        """
        self.directory = os.path.abspath(directory)
        self.behaviour = behaviour
        self.faults = Faults()
        self.socket_path = disk.socket_path(self.directory)
        self.checkpoint_path = os.path.join(self.directory, FILE_NAME)
        self._settings = Settings(self.directory, behaviour, grace_period, dial_timeout, max_message, clock)
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._checkpoints = checkpoints
        self._registrations: list[Registration] = []
        self._pods: dict[str, str] = {}
        self._active: set[str] = set()
        self._changed = asyncio.Event()
        self._run: _Run | None = None

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """Read the checkpoint, make and sweep the directory, listen (manager.go:235-281, in this order)."""
        if self._run is not None:
            raise RuntimeError("the kubelet runs already")
        books = Books(disk.read_checkpoint(self.checkpoint_path) if self._checkpoints else Checkpoint())
        os.makedirs(self.directory, mode=0o750, exist_ok=True)
        disk.sweep(self.directory, self.behaviour, keep_sockets=self.faults.keep_sockets)

        def save() -> None:
            if self._checkpoints:
                disk.write_checkpoint(self.checkpoint_path, books.checkpoint())

        plugins = Plugins(self._settings, books, self.faults, save=save, notify=self._notify)
        service = RegistrationService(self.faults, self._registrations, plugins.accept, self._notify)
        admission = Admission(
            behaviour=self.behaviour,
            books=books,
            endpoints=plugins.current,
            rng=self._rng,
            is_active=self._active.__contains__,
            save=save,
            lock=asyncio.Lock(),
        )
        listener = await listen(self.directory, service, garbage=self.faults.garbage_register)
        if self.behaviour is Behaviour.OLD:
            disk.write_deprecation(self.directory)
        self._run = _Run(books, plugins, admission, listener)
        self._notify()

    async def stop(self) -> None:
        """Die: every stream breaks, and kubelet.sock stays behind, refusing connections. May be repeated."""
        run, self._run = self._run, None
        if run is None:
            return
        await run.listener.stop()
        await run.plugins.close()
        self._notify()

    async def restart(self, *, keep_checkpoint: bool = True) -> None:
        """Stop and start again, with or without the memory of what was allocated."""
        await self.stop()
        if not keep_checkpoint:
            disk.remove_checkpoint(self.checkpoint_path)
        await self.start()

    @property
    def registrations(self) -> Sequence[Registration]:
        """Every Register request so far, over all restarts, in the order in which they came."""
        return tuple(self._registrations)

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of the resources that the node's status has; none while stopped."""
        if self._run is None:
            return ()
        self._run.plugins.expire()
        return tuple(self._run.books.listed())

    def resource(self, name: str) -> ResourceView:
        """Return one resource as it is now. Looking makes the kubelet forget plugins that are long gone."""
        known = name in self.resources
        listing = self._run.books.listings.get(name, Listing()) if self._run else Listing()
        endpoint = self._run.plugins.current.get(name) if self._run else None
        return ResourceView(
            name=name,
            known=known,
            capacity=listing.capacity,
            allocatable=len(listing.healthy),
            devices=listing.devices,
            connected=endpoint is not None and endpoint.stopped_at is None,
            streams=self._run.plugins.streams(name) if self._run else 0,
            streams_opened=listing.streams_opened,
            messages=listing.messages,
            last_message_size=listing.last_message_size,
            last_message_at=listing.last_message_at,
            last_stream_end=listing.last_stream_end,
        )

    async def wait_for(
        self,
        predicate: Callable[[Kubelet], bool],
        timeout: float = 30.0,
    ) -> None:
        """Return as soon as the predicate holds; it is asked now and after each change of state.

        A state that lasts for less than a turn of the event loop may be missed: wait for counts that only
        grow where that matters. TimeoutError after ``timeout`` seconds, with a description of the state.
        """
        try:
            async with asyncio.timeout(timeout):
                while not predicate(self):
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"not within {timeout:g} s; {self.describe()}") from None

    def describe(self) -> str:
        """Return the state in a few lines, for a test that failed."""
        lines = [f"the kubelet ({self.behaviour.name}) {'runs' if self._run else 'is stopped'}"]
        names = dict.fromkeys([*(self._run.books.listings if self._run else ()), *self.resources])
        lines.extend(
            f"  {view.name}: known={view.known} capacity={view.capacity} allocatable={view.allocatable} "
            f"connected={view.connected} streams={view.streams} of {view.streams_opened} "
            f"messages={view.messages} last_stream_end={view.last_stream_end!r}"
            for view in map(self.resource, names)
        )
        lines.append(f"  registrations: {len(self._registrations)}, the last one: {self._registrations[-1:]}")
        return "\n".join(lines)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _running(self) -> _Run:
        if self._run is None:
            raise RuntimeError("the kubelet is stopped")
        self._run.plugins.expire()
        return self._run

    async def admit(self, pod: Pod) -> AdmittedPod:
        """Admit a pod, as a node does that was just told of it. AdmissionError if it may not run."""
        run = self._running()
        self._pods[pod.uid] = pod.name
        self._active.add(pod.uid)
        try:
            return await run.admission.admit(pod)
        except BaseException:
            self._active.discard(pod.uid)
            raise
        finally:
            self._notify()

    async def start_container(self, pod: Pod, container_name: str) -> ContainerAllocation:
        """Create a container of an admitted pod, for the first time or again: the allocation is repeated.

        AdmissionError with CreateContainerConfigError if a plugin fails; the kubelet would try again.
        """
        return await self._running().admission.start(pod, pod.container(container_name))

    async def finish(self, pod: Pod) -> None:
        """End a pod. No plugin is told; its devices are free from the next admission on."""
        self._active.discard(pod.uid)
        self._notify()

    def allocated(self, resource: str) -> Mapping[str, tuple[str, str]]:
        """Return who has what: device id to (pod name, container name). Ended pods are freed first."""
        run = self._running()
        run.books.release(self._active.__contains__)
        return {
            device: (self._pods[entry.pod_uid], entry.container)
            for entry in run.books.entries.values()
            if entry.resource == resource
            for device in entry.device_ids
        }

    async def drop_streams(self, resource: str | None = None) -> None:
        """Cancel the streams of a resource, or of all, on the kubelet's side; return when they are over."""
        await self._running().plugins.drop_streams(resource)

    async def open_second_stream(self, resource: str) -> None:
        """Call ListAndWatch once more on the same connection; KeyError without a plugin."""
        run = self._running()
        before = run.books.listing(resource).streams_opened
        run.plugins.open_second_stream(resource)
        await self.wait_for(lambda k: k.resource(resource).streams_opened > before)
