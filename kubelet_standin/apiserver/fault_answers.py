"""What the stand-in API server answers to requests that a fault happens to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from aiohttp import web

from kubelet_standin.apiserver import faults
from kubelet_standin.apiserver.statuses import StatusError

if TYPE_CHECKING:
    from kubelet_standin.apiserver.faults import Active

JSON: Final = "application/json"


async def fault_answer(request: web.Request, active: Active) -> web.StreamResponse | None:
    """Return the answer to a request instead of processing it; None if it shall be processed, after a wait or not."""
    match active.fault:
        case faults.Hang():
            await active.removed.wait()
        case faults.Garbage(body, content_type, status):
            return web.Response(body=body, status=status, headers={"Content-Type": content_type})
        case faults.RawBytes(content):
            return await _raw(request, content)
        case faults.Throttle(seconds):
            # It is a filter before the API that answers, in plain text (apiserver/pkg/server/filters).
            text = "Too many requests, please try again later.\n"
            return web.Response(status=429, text=text, headers=_retry_after(seconds))
        case faults.Refuse(code, reason, message, seconds):
            return status_answer(StatusError(code, reason, message), _retry_after(seconds))
        case faults.Cut():
            pass
    return None


def status_answer(error: StatusError, headers: dict[str, str] | None = None) -> web.Response:
    """Return the answer with a Status object."""
    body = json.dumps(error.body()).encode()
    return web.Response(status=error.code, body=body, headers={"Content-Type": JSON, **(headers or {})})


async def cut_answer(request: web.Request, body: bytes, cut: faults.Cut) -> web.StreamResponse:
    """Send a part of an answer, and break the connection."""
    response = web.StreamResponse(headers={"Content-Type": JSON, "Content-Length": str(len(body))})
    if cut.after is not None:
        await response.prepare(request)
        await response.write(body[: round(len(body) * cut.after)])
    break_connection(request)
    return response


def break_connection(request: web.Request) -> None:
    """End a connection: what was written is sent, but not the end of the body."""
    if request.transport is not None:
        request.transport.close()


async def _raw(request: web.Request, content: bytes) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.write(content)
    break_connection(request)
    return web.Response()


def _retry_after(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"Retry-After": str(round(seconds))}
