"""A device plugin for KVM: up to 100 containers of a host get /dev/kvm, each by requesting one example.com/kvm.

The IDs are kvm::0 to kvm::99. /healthz, /readyz and /metrics are at port 9480.
"""

import os

from aosp_plugin.framework import ListedDevice, ListedDevices, serve

PATH = "/dev/kvm"


def list_devices() -> list[ListedDevice]:
    """Return the device, if the host has it; it is unhealthy if the plugin cannot open it."""
    if not os.path.exists(PATH):
        return []
    return [ListedDevice(PATH, slots=100, reason="" if os.access(PATH, os.R_OK | os.W_OK) else "no-access")]


if __name__ == "__main__":
    serve(ListedDevices("example.com/kvm", list_devices), listen="127.0.0.1:9480")
