"""Simulated plugins: one process that answers for the address of every node.

``python -m tests.e2e.fleet.plugins PHONES api`` serves ``/metrics``, as a plugin does whose ``/status`` is on its
loopback address.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from tests.e2e.fleet import objects

METRICS: Final = """\
# HELP aosp_plugin_devices Devices in the kubelet's list by health.
# TYPE aosp_plugin_devices gauge
aosp_plugin_devices{{health="healthy",reason="",resource="{resource}"}} {healthy}.0
aosp_plugin_devices{{health="unhealthy",reason="foreign-mount",resource="{resource}"}} {unhealthy}.0
aosp_plugin_devices{{health="unhealthy",reason="missing",resource="{resource}"}} 0.0
aosp_plugin_devices_allocated{{resource="{resource}"}} {used}.0
aosp_plugin_devices_expected{{resource="{resource}"}} {phones}.0
aosp_plugin_registered{{resource="{resource}"}} 1.0
aosp_plugin_other_plugins{{resource="{resource}"}} 0.0
{more}
aosp_plugin_build_info{{python="3.13.5",version="0.1.0"}} 1.0
"""
_OF_API: Final = {
    "device-plugin": 'aosp_plugin_kubelet_allocatable{{resource="{resource}"}} {healthy}.0',
    "dra": 'aosp_plugin_slices_wanted{{resource="{resource}"}} 2.0\n'
    'aosp_plugin_slices_confirmed{{resource="{resource}"}} 2.0',
}
_PADDING: Final = "".join(
    f'aosp_plugin_update_latency_seconds_bucket{{le="{number}.0",resource="{objects.RESOURCE}"}} {number}.0\n'
    for number in range(150)
)
"""Other metrics: a plugin's are some 12 kB."""


def metrics(phones: int, number: int, api: str) -> str:
    """Return the metrics of a node's plugin."""
    values = {
        "resource": objects.RESOURCE,
        "phones": phones,
        "used": phones - 1,
        "unhealthy": int(objects.unhealthy(number)),
        "healthy": phones - objects.unhealthy(number),
    }
    return METRICS.format(**values, more=_OF_API[api].format(**values)) + _PADDING


async def _answer(phones: int, api: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    address = writer.get_extra_info("sockname")[0]
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split(b" ", 2)[1]
            if path == b"/metrics":
                status, body = "200 OK", metrics(phones, objects.number_of(address), api)
            else:
                status, body = "404 Not Found", "no such path\n"
            length = f"Content-Length: {len(body)}\r\n"
            writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n{length}\r\n{body}".encode())
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve(phones: int, api: str) -> None:
    """Serve until the process is ended."""
    server = await asyncio.start_server(lambda *streams: _answer(phones, api, *streams), "0.0.0.0", objects.PORT)  # noqa: S104
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
