"""A device plugin for serial ports: a pod that requests example.com/serial gets one of the host's /dev/ttyUSB*."""

import glob

from aosp_plugin.framework import ListedDevices, serve


def list_ports() -> list[str]:
    """Return the paths of the serial ports."""
    return glob.glob("/dev/ttyUSB*")


if __name__ == "__main__":
    serve(ListedDevices("example.com/serial", list_ports))
