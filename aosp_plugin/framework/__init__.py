"""A framework for Kubernetes device plugins and DRA drivers, for any family of devices.

A backend serves its devices by the kubelet's device plugin API v1beta1, or by Dynamic Resource Allocation (DRA).

**A plugin for device nodes** needs a function that lists them::

    import glob
    from aosp_plugin.framework import ListedDevices, serve

    serve(ListedDevices("example.com/serial", lambda: glob.glob("/dev/ttyUSB*")))

``ListedDevices`` also serves several slots per device node, mounts and health: let the function return ``ListedDevice``
entries instead of paths. ``examples/`` has three complete plugins, and a DRA driver.

**A plugin for anything else** implements ``Backend``. Two methods are required: ``scan`` reads the state of the host,
and returns what it has ``Found``; ``allocate`` returns the ``ContainerEdits`` for the devices of one container.
``update_host`` writes what depends on the devices to the host, and ``pre_start`` prepares devices for a container. All
get what the last scan has found, so a backend needs no state that threads share. ``errors`` has their errors: raise
``BackendError`` if a scan fails, and an ``AllocationError`` if a request cannot be served.

**DRA.** ``serve_dra(*backends)`` serves the same backends to the scheduler: devices in ResourceSlices, with the
attributes that ``Backend.attributes`` returns, and containers get what ``Backend.prepare`` returns for their claim. The
defaults suit a backend that knows nothing of DRA. ``unprepare`` is called when no container has the device any more.

**Running it.** ``serve(*backends)`` is a whole main program: it registers each resource with the kubelet and keeps it
registered, follows file events, logs, ends within 4 s after SIGTERM whatever hangs, and serves probes and metrics if
``listen`` is set. A program with an event loop of its own runs a ``DevicePlugin`` per resource instead; several plugins
share one ``runtime.Runtime``. ``DevicePlugin.prepare`` finds out whether a plugin can serve before another one is
stopped. ``metrics`` has its counters, in a registry of prometheus_client.

**Testing it.** ``kubelet_standin`` has a stand-in kubelet.

The names below are all that most plugins need. Those that require gRPC are loaded on first use.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aosp_plugin.framework.backend import Backend as Backend
from aosp_plugin.framework.backend import ContainerEdits as ContainerEdits
from aosp_plugin.framework.backend import Device as Device
from aosp_plugin.framework.backend import DeviceNode as DeviceNode
from aosp_plugin.framework.backend import Found as Found
from aosp_plugin.framework.backend import Mount as Mount
from aosp_plugin.framework.listed import ListedDevice as ListedDevice
from aosp_plugin.framework.listed import ListedDevices as ListedDevices

if TYPE_CHECKING:
    from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin as DevicePlugin
    from aosp_plugin.framework.service.serving import serve as serve
    from aosp_plugin.framework.service.serving import serve_dra as serve_dra

# Otherwise gRPC's C core writes to standard error, and blocks while nobody reads. It reads this when it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_MODULES = {"DevicePlugin": "deviceplugin.plugin", "serve": "service.serving", "serve_dra": "service.serving"}


def __getattr__(name: str) -> Any:
    """Load a name that requires gRPC from its module, on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
