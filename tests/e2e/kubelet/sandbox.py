"""The sandbox of a kubelet, which can use its compiled-in paths: file systems and a network."""

from collections.abc import Sequence
from typing import Final

from tests.e2e.common.processes import run
from tests.e2e.common.sandbox import mount_memory

NODE_ADDRESS: Final = "192.0.2.10"


def set_up(own: Sequence[str]) -> None:
    """Mount new file systems in memory at the paths ``own``, and set up the network; called in the sandbox.

    The node has an address and a default route without a network behind them; pods use the bridge plugin.
    """
    run("mount", "--make-rshared", "/")
    mount_memory(*own)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "node0", "type", "bridge")
    run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", "node0")
    run("ip", "link", "set", "node0", "up")
    run("ip", "route", "add", "default", "via", "192.0.2.1")
