"""``aosp-plugin provisioner``: the privileged part of a plugin with ``provisioned_by: provisioner``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import remote, service
from aosp_plugin.framework.service import logs

if TYPE_CHECKING:
    from aosp_plugin.config import Config


def run(config: Config) -> None:
    """Create the binder devices of ``provision``, and mount phones on request until SIGTERM or SIGINT.

    The plugin checks the directories of the phones before its first request. Raises HostError and OSError.
    """
    logs.set_up(config.log_level, config.log_format)
    if found := tuple(resource for resource in config.resources if resource.provision is not None):
        from aosp_plugin.cli.provision import provision  # noqa: PLC0415 - loads grpc, half of the process's memory

        provision(structs.replace(config, resources=found))
    phones = {
        resource.phones.directory: service.RequestedPhones(
            resource.phones.directory, Host(config.host_root), resource.phones.count
        )
        for resource in config.resources
        if resource.phones is not None
    }
    service.serve(remote.SOCKET, phones)
