"""A device plugin for Cuttlefish, Android in a virtual machine: containers that request example.com/cuttlefish.

Each gets the devices that Cuttlefish opens, and the environment variable VSOCK_GUEST_CID, for `launch_cvd
--vsock_guest_cid=$VSOCK_GUEST_CID`. By default, Cuttlefish takes the same CID in every container. CIDs belong to one
host, whose virtual machines share them: 0 to 2 are reserved, and other software counts from 3.
"""

import os
from collections.abc import Sequence

from aosp_plugin.framework import Backend, ContainerEdits, Device, DeviceNode, Found, serve

DEVICES = ("/dev/kvm", "/dev/vhost-vsock", "/dev/vhost-net", "/dev/net/tun")
SLOTS = 16
FIRST_CID = 1000


class Cuttlefish(Backend[Found]):
    """Slots that are all healthy, or, if the host lacks a device, all unhealthy."""

    resource_name = "example.com/cuttlefish"

    def scan(self) -> Found:
        """Return the slots, named by their CIDs, and where the devices appear: a change there causes a scan."""
        unusable = [path for path in DEVICES if not os.access(path, os.R_OK | os.W_OK)]
        detail = f"missing, or not accessible: {', '.join(unusable)}" if unusable else ""
        reason = "missing" if unusable else ""
        slots = [Device(f"cid-{FIRST_CID + slot}", reason, detail=detail) for slot in range(SLOTS)]
        return Found(slots, directories=frozenset(map(os.path.dirname, DEVICES)))

    def allocate(self, found: Found, ids: Sequence[str]) -> ContainerEdits:  # noqa: ARG002 - the slots are alike
        """Return the devices, and the CIDs of the slots, separated by commas."""
        cids = ",".join(device_id.removeprefix("cid-") for device_id in ids)
        return ContainerEdits(
            devices=[DeviceNode(path, path, "rw") for path in DEVICES], environment={"VSOCK_GUEST_CID": cids}
        )


if __name__ == "__main__":
    serve(Cuttlefish(), listen="127.0.0.1:9480")
