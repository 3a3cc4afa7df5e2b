"""A DRA driver for USB serial ports: pods select one by an attribute in a ResourceClaim, such as its vendor.

The driver is serial.example.com. A DeviceClass selects its devices with the CEL expression
``device.driver == "serial.example.com"``, a claim one of them with, for example,
``device.attributes["serial.example.com"].vendor == "0403"``. The pod requires a service account that may list, watch,
create, update and delete ResourceSlices, get ResourceClaims, and get its Node.
"""

import glob
import os

from aosp_plugin.framework import ListedDevice, ListedDevices, serve_dra

PORTS = "/dev/ttyUSB*"
SYSFS = "/sys/class/tty"


def list_ports() -> list[ListedDevice]:
    """Return the ports, with the USB vendor ID of each."""
    return [ListedDevice(path, attributes={"vendor": read_vendor(os.path.basename(path))}) for path in glob.glob(PORTS)]


def read_vendor(name: str) -> str:
    """Return the USB vendor ID of a port; unknown if the kernel does not have one."""
    try:
        with open(f"{SYSFS}/{name}/device/../../idVendor", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return "unknown"


if __name__ == "__main__":
    serve_dra(ListedDevices("example.com/serial", list_ports), listen="127.0.0.1:9480")
