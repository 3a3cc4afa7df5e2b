"""The host of ``demo --stay``: stand-in phones, which are directories with three empty files each, and their plugin."""

from __future__ import annotations

import os

import yaml

RESOURCE = "aosp.io/phone"
BINDER_DEVICES = ("binder", "hwbinder", "vndbinder")


class Phones:
    """The device directory. A phone is named as the key ``phones`` names it: ``phone7/binder`` and so on."""

    def __init__(self, directory: str, count: int) -> None:
        """Create ``count`` phones in ``directory``."""
        self.names = [f"phone{number}" for number in range(count)]
        self.directory = directory
        self._hidden_directory = f"{directory}.hidden"
        for name in self.names:
            os.makedirs(os.path.join(directory, name))
            for device in BINDER_DEVICES:
                self.create(name, device)

    @property
    def hidden(self) -> bool:
        """Whether the whole directory is away."""
        return os.path.exists(self._hidden_directory)

    def hide(self) -> None:
        """Let the directory vanish with all phones."""
        os.rename(self.directory, self._hidden_directory)

    def show(self) -> None:
        """Bring the directory back."""
        os.rename(self._hidden_directory, self.directory)

    def path(self, phone: str, device: str) -> str:
        """Return the path of a binder device."""
        return os.path.join(self._hidden_directory if self.hidden else self.directory, phone, device)

    def create(self, phone: str, device: str) -> None:
        """Create a binder device of a phone."""
        os.mknod(self.path(phone, device))

    def remove(self, phone: str, device: str) -> None:
        """Remove a binder device of a phone."""
        os.unlink(self.path(phone, device))


def write_configuration(path: str, *, devices: str, kubelet: str, pod_resources: str, listen: str) -> None:
    """Write the plugin's configuration file: phones of found devices, as on a host that has them already."""
    document = {
        "version": "v1",
        "resource_name": RESOURCE,
        "device_dir": devices,
        "device_prefix": "phone",
        "verify": "file",
        "sets": {"names": list(BINDER_DEVICES)},
        "container_paths": [f"/dev/{name}" for name in BINDER_DEVICES],
        "shared_devices": [],
        "kubelet_dir": kubelet,
        "pod_resources_socket": pod_resources,
        "leak_scan_interval": 2,
        "listen": listen,
    }
    with open(path, "w", encoding="utf-8") as file:
        yaml.safe_dump(document, file, sort_keys=False)
