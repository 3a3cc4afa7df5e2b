"""The network of the cluster's sandbox, in which the control plane runs: a bridge of the machines."""

from pathlib import Path
from typing import Final

from tests.e2e.common import sandbox
from tests.e2e.common.processes import run

ADDRESS: Final = "203.0.113.10"
"""The control plane's address, and the nodes' gateway; 203.0.113.0/24 is reserved for documentation (RFC 5737)."""
SERVICES: Final = "198.18.0.0/24"
SERVICE: Final = "198.18.0.1"
"""The service `kubernetes` of pods: on the loopback device of the control plane, so that no kube-proxy is needed."""
BRIDGE: Final = "cluster0"


def set_up() -> None:
    """Mount the sandbox's file systems and set up its network; called in the sandbox."""
    sandbox.mount_memory("/run", "/var/lib")
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{SERVICE}/32", "dev", "lo")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
