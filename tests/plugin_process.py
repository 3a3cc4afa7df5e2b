"""A device plugin as a process, with short intervals: ``python -m tests.plugin_process KUBELET_DIR SOCKET DEVICE_DIR``.

For tests with several plugins on a node, which distinguish each other by their process IDs.
"""

import asyncio
import contextlib
import signal
import sys

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.deviceplugin.plugin import KubeletView
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.timing import Timings, background_task
from tests.support import IN_LIFE, RESOURCE

SHORT = IN_LIFE._replace(recheck=0.1, retry=0.05)
VIEW = Timings(
    view_interval=0.2,
    view_after_registration=0.1,
    recheck=0.5,  # as in life, two answers of the kubelet take longer than to see that a later plugin has registered
    view_settle=0.05,
    view_pause=0.2,
)


async def main(kubelet_dir: str, pod_resources_socket: str, device_dir: str) -> None:
    """Serve the files in a directory until SIGTERM."""
    logs.set_up("info", "text")
    resource = Resource(resource_name=RESOURCE, device_dir=device_dir, verify=Verify.FILE)
    backend = BinderBackend(Host(), resource, cdi_dir=Config().cdi_dir)
    plugin = DevicePlugin(backend, kubelet_dir=kubelet_dir, runtime=Runtime(timings=SHORT))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, plugin.stop)
    with contextlib.closing(PodResources(pod_resources_socket, [RESOURCE])) as pod_resources:
        async with background_task(KubeletView([plugin], pod_resources, Runtime(timings=VIEW)).run()):
            await plugin.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
