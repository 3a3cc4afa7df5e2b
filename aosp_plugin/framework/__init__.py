"""The kubelet's device plugin protocol v1beta1, for any device at all.

A plugin for a device of your own is a function that lists nodes, a resource name and a socket name, handed to
``serve_listed``; ``examples/serial_ports.py`` is one. What needs more than that (health, mounts, preferred
allocation) implements ``Backend`` and gives it to ``DevicePlugin``, as ``aosp_plugin.plugin`` does.
"""

from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin
from aosp_plugin.framework.inventory import Device
from aosp_plugin.framework.listed import ListedDevices, serve_listed

__all__ = ["Backend", "Device", "DevicePlugin", "ListedDevices", "serve_listed"]
