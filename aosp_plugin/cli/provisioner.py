"""``aosp-plugin provisioner``: the privileged part of a plugin with ``provisioned_by: provisioner``."""

import logging

from msgspec import structs

from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.binder.provision import provisioner_socket
from aosp_plugin.config.keys import Config
from aosp_plugin.framework.service import logs

LOG = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Create the binder devices of ``provision``, and mount phones on request until SIGTERM or SIGINT.

    The signals have to be blocked. The plugin checks the directories of the phones before its first request. Raises
    OSError, and HostError if nothing can be provisioned and no resource has phones.
    """
    logs.set_up(config.log_level, config.log_format)
    phones = {
        resource.phones.directory: provisioner_socket.RequestedPhones(
            resource.phones.directory, Host(config.host_root), resource.phones.count
        )
        for resource in config.resources
        if resource.phones is not None
    }
    if found := tuple(resource for resource in config.resources if resource.provision is not None):
        from aosp_plugin.cli.provision import provision  # noqa: PLC0415 - loads grpc, half of the process's memory

        try:
            provision(structs.replace(config, resources=found))
        except HostError as error:
            if not phones:
                raise
            LOG.error("resource not provisioned", extra={"error": str(error)})  # noqa: TRY400 - no traceback
    provisioner_socket.serve_requests(provisioner_socket.PROVISIONER_SOCKET, phones)
