"""A node on which ``aosp-plugin serve`` runs in the process of a test, with the configuration that the test writes."""

import json
from pathlib import Path
from typing import Any

from kubelet_standin import Kubelet
from tests.support import DeviceDirectory, ServeHere


class ServedNode:
    """A directory with devices and a configuration, and a kubelet."""

    def __init__(self, directory: Path, kubelet: Kubelet, *, port: int = 0, **keys: Any) -> None:
        """``keys`` are what each configuration has; devices are plain files unless they say something else.

        ``port`` is that of the plugin's page, which has none by default.
        """
        self.directory = directory
        self.kubelet = kubelet
        self.port = port
        self.devices = DeviceDirectory(directory / "dev")
        self.environment: dict[str, str] = {}
        self._keys = {
            "version": "v1",
            "device_dir": str(self.devices.directory),
            "kubelet_dir": str(kubelet.directory),
            "verify": "file",
            "listen": f"127.0.0.1:{port}" if port else "",
            **keys,
        }

    def configure(self, **keys: Any) -> Path:
        """Write the configuration, and return its path; a plugin that runs reads it at SIGHUP."""
        path = self.directory / "config.yaml"
        path.write_text(json.dumps({**self._keys, **keys}), encoding="utf-8")
        return path

    def serve(self, **keys: Any) -> ServeHere:
        """Write the configuration, and return the plugin."""
        file = f"--config={self.configure(**keys)}"
        kubelet_dir = str(self.kubelet.directory)
        return ServeHere(self.devices, kubelet_dir, file, environment=self.environment, usual_flags=False)
