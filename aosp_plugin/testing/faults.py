"""What a test can break in the stand-in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass
class Faults:
    """Faults of the kubelet's side. Change them at any time; they count from the next Register on."""

    refuse_register: str | None = None
    """Every Register fails with gRPC's UNKNOWN and this text."""

    hang_register: bool = False
    """Register gets no answer until :meth:`release_register`."""

    slow_register: float = 0.0
    """Seconds that pass before a Register is looked at."""

    never_open_stream: bool = False
    """The plugin is registered, but ListAndWatch is never called."""

    garbage_register: bool = False
    """From the next start on, kubelet.sock answers bytes that are no gRPC."""

    keep_sockets: bool = False
    """A start removes nothing but kubelet.sock itself: what plugins left behind stays."""

    _hanging: list[asyncio.Future[None]] = field(default_factory=list, repr=False)

    def release_register(self) -> None:
        """End ``hang_register``: the calls that hang go on as usual, and later ones don't hang."""
        self.hang_register = False
        hanging, self._hanging = self._hanging, []
        for waiter in hanging:
            if not waiter.done():
                waiter.set_result(None)

    async def delay_register(self) -> None:
        """Return when this Register may be looked at."""
        if self.hang_register:
            waiter = asyncio.get_running_loop().create_future()
            self._hanging.append(waiter)
            await waiter
        if self.slow_register:
            await asyncio.sleep(self.slow_register)
