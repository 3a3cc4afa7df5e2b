"""A DRA driver for USB serial ports: pods select one by an attribute in a ResourceClaim, such as its vendor.

The driver is serial.example.com. A DeviceClass selects its devices with the CEL expression
``device.driver == "serial.example.com"``, a claim one of them with, for example,
``device.attributes["serial.example.com"].vendor == "0403"``. The pod requires a service account that may list, watch,
create, update and delete ResourceSlices, get ResourceClaims, and get its Node.
"""

import glob
import os
from collections.abc import Mapping

from aosp_plugin.framework import ListedDevices, serve_dra

PORTS = "/dev/ttyUSB*"
SYSFS = "/sys/class/tty"


class SerialPorts(ListedDevices):
    """The USB serial ports, with the vendor of each."""

    def attributes(self, device_id: str) -> Mapping[str, str]:
        """Return the USB vendor ID of a port, as it was at the last scan."""
        return {"vendor": vendors.get(device_id.rpartition("-")[2], "unknown")}


vendors: Mapping[str, str] = {}


def list_ports() -> list[str]:
    """Return the ports, and read their vendors: files of the host are read here, in the worker thread."""
    global vendors  # noqa: PLW0603 - replaced by a single assignment, as Backend demands
    ports = glob.glob(PORTS)
    vendors = {os.path.basename(port): read_vendor(os.path.basename(port)) for port in ports}
    return ports


def read_vendor(name: str) -> str:
    """Return the USB vendor ID of a port; unknown if the kernel does not have one."""
    try:
        with open(f"{SYSFS}/{name}/device/../../idVendor", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return "unknown"


if __name__ == "__main__":
    serve_dra(SerialPorts("example.com/serial", list_ports), listen="127.0.0.1:9480")
