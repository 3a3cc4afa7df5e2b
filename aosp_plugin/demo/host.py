"""The stand-in host of the demo: phones of empty files, and the plugin's configuration for them."""

import os
from collections.abc import Iterable

import yaml

RESOURCE = "aosp.io/phone"
BINDER_DEVICES = ("binder", "hwbinder", "vndbinder")
"""The files of a phone, which is a directory."""


class Host:
    """Phones in a directory, as on a host where something else has made their binder devices."""

    def __init__(self, directory: str, phones: int) -> None:
        """Describe the phones; ``create`` makes their files."""
        self.phones = [f"phone{number}" for number in range(phones)]
        self.configuration = os.path.join(directory, "config.yaml")
        """The plugin's configuration file."""
        self.kubelet_dir = os.path.join(directory, "kubelet")
        self._device_dir = os.path.join(directory, "dev")

    def create(self) -> None:
        """Make all phones."""
        for phone in self.phones:
            os.makedirs(os.path.join(self._device_dir, phone))
            self.add(phone, BINDER_DEVICES)

    def add(self, phone: str, devices: Iterable[str]) -> None:
        """Make binder devices of a phone."""
        for device in devices:
            os.mknod(os.path.join(self._device_dir, phone, device))

    def remove(self, phone: str, devices: Iterable[str]) -> None:
        """Remove binder devices of a phone."""
        for device in devices:
            os.unlink(os.path.join(self._device_dir, phone, device))

    def configure(self, *, listen: str, pod_resources_socket: str) -> None:
        """Write the plugin's configuration."""
        document = {
            "version": "v1",
            "resource_name": RESOURCE,
            "device_dir": self._device_dir,
            "device_prefix": "phone",
            "verify": "file",
            "sets": {"names": list(BINDER_DEVICES)},
            "container_paths": [f"/dev/{name}" for name in BINDER_DEVICES],
            "shared_devices": [],
            "kubelet_dir": self.kubelet_dir,
            "pod_resources_socket": pod_resources_socket,
            "listen": listen,
        }
        with open(self.configuration, "w", encoding="utf-8") as file:
            yaml.safe_dump(document, file, sort_keys=False)
