"""A framework for device plugins: the kubelet's device plugin API v1beta1 for any family of devices."""

from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin
from aosp_plugin.framework.edits import ContainerEdits, DeviceNode, Mount
from aosp_plugin.framework.inventory import Device
from aosp_plugin.framework.listed import ListedDevice, ListedDevices
from aosp_plugin.framework.service.serving import serve

__all__ = [
    "Backend",
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "DevicePlugin",
    "ListedDevice",
    "ListedDevices",
    "Mount",
    "serve",
]
