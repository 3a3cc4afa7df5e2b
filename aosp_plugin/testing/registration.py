"""The Registration service on kubelet.sock, and the record of what was asked there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import deviceplugin_pb2_grpc as rpc
from aosp_plugin.testing.names import registration_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aosp_plugin.testing.faults import Faults

PENDING = "pending"
ACCEPTED = "ok"
CANCELLED = "cancelled"


@dataclass
class Registration:
    """One Register request, and what became of it."""

    version: str
    endpoint: str
    resource_name: str
    options: pb.DevicePluginOptions = field(repr=False)  # printed over several lines
    """As in the request; newer kubelets don't heed them."""
    outcome: str = PENDING
    """``pending``, ``ok``, ``cancelled`` (the caller left or the kubelet stopped), or the error's text."""
    dial_error: str | None = None
    """Why the plugin could not be dialled after the answer; it is never told (``Behaviour.OLD``)."""

    @property
    def accepted(self) -> bool:
        """Whether the answer was OK."""
        return self.outcome == ACCEPTED


class RegistrationService(rpc.RegistrationServicer):
    """Answers Register: the faults first, then the kubelet's checks, then ``accept``."""

    def __init__(
        self,
        faults: Faults,
        seen: list[Registration],
        accept: Callable[[Registration], Awaitable[str | None]],
        notify: Callable[[], None],
    ) -> None:
        self._faults = faults
        self._seen = seen
        self._accept = accept
        self._notify = notify

    async def Register(  # noqa: N802 - the generated base is for both kinds of server
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        """Answer Empty, or UNKNOWN with the kubelet's text, as a Go error without a status becomes."""
        registration = Registration(request.version, request.endpoint, request.resource_name, request.options)
        self._seen.append(registration)
        self._notify()
        try:
            error = await self._judge(registration)
        except asyncio.CancelledError:
            registration.outcome = CANCELLED
            self._notify()
            raise
        registration.outcome = error or ACCEPTED
        self._notify()
        if error:
            await context.abort(grpc.StatusCode.UNKNOWN, error)
        return pb.Empty()

    async def _judge(self, registration: Registration) -> str | None:
        await self._faults.delay_register()
        if self._faults.refuse_register is not None:
            return self._faults.refuse_register
        error = registration_error(registration.version, registration.resource_name)
        return error if error is not None else await self._accept(registration)
