"""``aosp-plugin provisioner``: the privileged part of a plugin with ``provisioned_by: provisioner``."""

from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import provisioner_socket
from aosp_plugin.config.keys import Config
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.worker import require_threads

THREADS = 4
"""One for the signals, and a timer for each of a request, its answer and the end."""


def run(config: Config) -> None:
    """Mount phones on request until SIGTERM or SIGINT.

    The signals have to be blocked. The plugin checks the directories of the phones before its first request. Raises
    OSError, and HostError if another provisioner runs.
    """
    logs.set_up(config.log_level, config.log_format)
    require_threads(THREADS)
    phones = {
        resource.phones.directory: provisioner_socket.RequestedPhones(
            resource.phones.directory, Host(config.host_root), resource.phones.count
        )
        for resource in config.resources
        if resource.phones is not None
    }
    provisioner_socket.serve_requests(provisioner_socket.PROVISIONER_SOCKET, phones)
