"""The parts of a backend, as the configuration of its resource determines them.

Modules of phones, provisioning, recreation and CDI are imported for resources that have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.binder.devices import sets
from aosp_plugin.binder.devices.phones import PhoneLayout
from aosp_plugin.binder.discovery.store import DeviceStore
from aosp_plugin.config import Api, NumberedSets, ProvisionedBy, Recreate

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.backend.container_edits import EditsBuilder
    from aosp_plugin.backend.health import Holds
    from aosp_plugin.backend.phones import Phones
    from aosp_plugin.backend.spec_writer import SpecWriter
    from aosp_plugin.binder.devices.sets import Layout
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.binder.provision.phones import PhoneProvisioner
    from aosp_plugin.binder.provision.provisioner import DeviceProvisioner
    from aosp_plugin.binder.provision.recreation import Recreator
    from aosp_plugin.config import Resource


def expected_devices(resource: Resource) -> int | None:
    """Return the number of devices that the configuration orders; None if it orders none."""
    provision = resource.provision
    if resource.phones is not None:
        return resource.phones.count * resource.replicas
    if provision is None:
        return None
    numbers = range(provision.first, provision.first + provision.count)
    ids = layout(resource).ids([f"{resource.device_prefix}{number}" for number in numbers])
    return len(ids) * resource.replicas


def layout(resource: Resource) -> Layout:
    """Return which binder devices form a device."""
    if resource.phones is not None:
        return PhoneLayout()
    if resource.sets is None:
        return sets.Single(resource.device_prefix)
    if isinstance(resource.sets, NumberedSets):
        return sets.Numbered(resource.device_prefix, resource.sets.size, resource.sets.stride, resource.sets.first)
    return sets.Named(resource.sets.names, resource.sets.pattern)


def device_store(host: Host, resource: Resource, clock: Callable[[], float]) -> DeviceStore:
    """Return an empty store of the resource's binder devices."""
    return DeviceStore(
        host,
        directory=resource.scan_directory,
        layout=layout(resource),
        verify=resource.verify,
        missing_device_ttl=resource.missing_device_ttl,
        require_directory=expected_devices(resource) is None,
        clock=clock,
    )


def device_provisioner(host: Host, resource: Resource, clock: Callable[[], float]) -> DeviceProvisioner | None:
    """Return what creates the binder devices of ``provision``; None if the plugin is not to create any."""
    provision = resource.provision
    if provision is None or resource.provisioned_by is not ProvisionedBy.PLUGIN:
        return None
    from aosp_plugin.binder.provision.provisioner import DeviceProvisioner, ProvisionSpec  # noqa: PLC0415 - see above

    spec = ProvisionSpec(
        directory=provision.directory,
        prefix=resource.device_prefix,
        first=provision.first,
        count=provision.count,
        max_devices=provision.max,
    )
    return DeviceProvisioner(spec, host, clock=clock)


def phone_provisioner(host: Host, resource: Resource, clock: Callable[[], float]) -> PhoneProvisioner | None:
    """Return what mounts or finds the binderfs of each phone; None if the resource has no ``phones``."""
    if resource.phones is None:
        return None
    from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE, SOURCE  # noqa: PLC0415 - see above
    from aosp_plugin.binder.provision.phones import PhoneProvisioner  # noqa: PLC0415 - see above
    from aosp_plugin.binder.provision.remote import RemotePhoneProvisioner  # noqa: PLC0415 - see above

    kind = RemotePhoneProvisioner if resource.provisioned_by is ProvisionedBy.PROVISIONER else PhoneProvisioner
    source = CLAIM_SOURCE if resource.api is Api.DRA else SOURCE
    return kind(resource.phones.directory, host, clock, source=source)


def phones(
    resource: Resource,
    provisioner: PhoneProvisioner | None,
    store: DeviceStore,
    holds: Holds,
    clock: Callable[[], float],
) -> Phones | None:
    """Return what keeps the phones of the resource; None if it has no ``phones``."""
    if resource.phones is None or provisioner is None:
        return None
    from aosp_plugin.backend.claimed_phones import ClaimedPhones  # noqa: PLC0415 - see above
    from aosp_plugin.backend.phones import Phones, ProvisionedPhones  # noqa: PLC0415 - see above

    if resource.api is Api.DRA:
        return ClaimedPhones(provisioner, store, resource.phones.count, holds)
    if resource.provisioned_by is ProvisionedBy.COMMAND:
        return ProvisionedPhones(provisioner, store, resource.phones.count, holds)
    return Phones(provisioner, store, resource.phones.count, holds, replicas=resource.replicas, clock=clock)


def recreator(
    host: Host, resource: Resource, provisioner: PhoneProvisioner | None, store: DeviceStore
) -> Recreator | None:
    """Return what recreates binder devices before a container starts; None if that is off.

    Under DRA, each claim gets a fresh phone anyway.
    """
    if resource.recreate is Recreate.NEVER or (resource.phones is not None and resource.api is Api.DRA):
        return None
    from aosp_plugin.binder.provision.recreation import Recreator  # noqa: PLC0415 - see above

    return Recreator(host, store, provisioner)


def spec_writer(host: Host, resource: Resource, edits: EditsBuilder, cdi_dir: str) -> SpecWriter | None:
    """Return what writes the CDI spec; None if no container gets devices by CDI."""
    if not edits.needs_spec:
        return None
    from aosp_plugin.backend.spec_writer import SpecWriter  # noqa: PLC0415 - see above

    return SpecWriter(host, resource, edits, cdi_dir)
