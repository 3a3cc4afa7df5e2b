"""A device plugin for serial ports: a pod that asks for example.com/serial gets one of the node's /dev/ttyUSB*."""

import glob

from aosp_plugin.framework import serve_listed


def list_devices() -> list[str]:
    """Return the paths of the devices that are there now."""
    return glob.glob("/dev/ttyUSB*")


if __name__ == "__main__":
    serve_listed(list_devices, resource_name="example.com/serial", socket_name="serial")
