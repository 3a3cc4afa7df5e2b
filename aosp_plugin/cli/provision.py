"""``aosp-plugin provision``: mounts and creates what the configuration orders, and ends.

It is the privileged part of a plugin with ``provisioned_by: command``, and runs before it in an init container.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aosp_plugin.backend.provisioning import provision as provision_resource
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.daemon.assembly import check_phone_directories
from aosp_plugin.errors import HostError
from aosp_plugin.framework.service import logs

if TYPE_CHECKING:
    from aosp_plugin.config import Config

LOG = logging.getLogger(__name__)


def provision(config: Config) -> None:
    """Provision every resource; those without anything to provision are skipped.

    A resource that fails is logged, and must not keep the plugin from serving the others. Raises HostError if all have
    failed, ConfigError, and OSError.
    """
    logs.set_up(config.log_level, config.log_format)
    check_phone_directories(config)
    errors: dict[str, str] = {}
    ordered = 0
    for resource in config.resources:
        name = resource.resource_name
        try:
            provisioned = provision_resource(Host(config.host_root), resource)
        except HostError as error:
            errors[name] = str(error)
            continue
        if provisioned is None:
            continue
        ordered += provisioned.ordered
        for phone, obstacle in provisioned.obstacles.items():
            LOG.warning("phone not provisioned", extra={"resource": name, "device": phone, "error": str(obstacle)})
        counts = {"ordered": provisioned.ordered, "added": provisioned.added}
        LOG.info("provisioned", extra={"resource": name, **counts})
    if len(errors) == len(config.resources):
        raise HostError("; ".join(f"{name}: {problem}" for name, problem in errors.items()))
    for name, problem in errors.items():
        LOG.error("resource not provisioned", extra={"resource": name, "error": problem})
    if not ordered and not errors:
        LOG.warning("nothing to provision", extra={"reason": "the configuration has neither phones nor provision"})
