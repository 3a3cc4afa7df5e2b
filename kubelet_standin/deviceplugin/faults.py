"""Faults that can be injected into the stand-in kubelet."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field


@dataclass
class Faults:
    """Faults of the kubelet. They can be changed at any time, and apply from the next Register call."""

    refuse_register: str | None = None
    """Register fails with the gRPC code UNKNOWN and this text."""

    hang_register: bool = False
    """Register is not answered until :meth:`release_register`."""

    slow_register: float = 0.0
    """Delay before a Register request is processed, in seconds; :meth:`release_register` ends it as well."""

    never_open_stream: bool = False
    """The plugin is registered, but ListAndWatch is not called."""

    ignore_devices: bool = False
    """Device lists are received and dropped, as by a device manager that hangs."""

    garbage_register: bool = False
    """After the next start, kubelet.sock answers with bytes that are not gRPC."""

    keep_sockets: bool = False
    """A start removes only kubelet.sock: other stale sockets stay."""

    _released: asyncio.Event = field(default_factory=asyncio.Event, repr=False, compare=False)

    def release_register(self) -> None:
        """Reset ``hang_register`` and ``slow_register``, and continue the calls that wait."""
        self.hang_register, self.slow_register = False, 0.0
        self._released.set()
        self._released = asyncio.Event()

    async def delay_register(self) -> None:
        """Wait until a Register request may be processed."""
        if self.hang_register:
            await self._released.wait()
        if self.slow_register:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.slow_register):
                    await self._released.wait()
