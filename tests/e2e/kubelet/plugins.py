"""The plugin as a process of the host, and as the DaemonSet's pod."""

import itertools
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.common.processes import TAIL, Daemon
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.deploy.manifests import the
from tests.e2e.deploy.parts import PROJECT
from tests.e2e.kubelet.crio import ContainerRuntime
from tests.e2e.kubelet.parts import PLUGIN_IMAGE
from tests.e2e.kubelet.runtime import without_scheme
from tests.e2e.kubelet.standalone import PLUGINS, Standalone

SHARED: Final = "/dev/aosp_shared"
"""A directory of the host that every container gets, because stand-ins have no binderfs to share."""
SHARING: Final = f"shared_mounts: ['binderfs:/dev/binderfs', '{SHARED}:/vendor/shared']\n"
POD: Final = "aosp-device-plugin"
_NUMBERS: Final = itertools.count(1)
_BASE: Final = PROJECT / "deploy/base/manifests.yaml"
PROGRAM: Final = (str(Path(sys.executable).with_name("aosp-plugin")),)
WITH_TMPFS: Final = (sys.executable, "-m", "tests.tmpfs_phones")
"""The plugin with a tmpfs in place of each phone's binderfs."""


def sockets() -> list[str]:
    """Return the plugin's sockets."""
    return [name for name in os.listdir(PLUGINS) if name.startswith("aosp-") and name.endswith(".sock")]


def configuration(more: str = SHARING, *, verify: str = "char") -> str:
    """Return deploy/base/config.yaml for stand-ins, with more keys, by default with one more shared directory."""
    text = (PROJECT / "deploy/base/config.yaml").read_text()
    assert "\nverify: binder\n" in text, text
    return text.replace("\nverify: binder\n", f"\nverify: {verify}\n") + f"\n{more}\n"


def unhealthy_by_reason(resource: str) -> dict[str, int]:
    """Return the number of Unhealthy devices by reason, from the /metrics of the plugin as a process."""
    with urllib.request.urlopen("http://127.0.0.1:9478/metrics", timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    line = rf'^aosp_plugin_devices{{health="unhealthy",reason="([^"]+)",resource="{re.escape(resource)}"}} (\S+)$'
    counts = {reason: int(float(value)) for reason, value in re.findall(line, text, re.MULTILINE)}
    assert counts, f"no metrics of {resource}"
    return {reason: count for reason, count in counts.items() if count}


class AsProcess:
    """``aosp-plugin serve`` as a process of the host."""

    def __init__(self, directory: Path, text: str, program: Sequence[str] = PROGRAM) -> None:
        """Write the configuration to a directory, which gets the log too."""
        directory.mkdir()
        self._config = directory / "config.yaml"
        self.program = program
        self.configure(text)
        command = [*program, "serve", f"--config={self._config}"]
        self._daemon = Daemon("plugin", command, directory / "plugin.log")

    def configure(self, text: str) -> None:
        """Write the configuration for the next start or reload."""
        self._config.write_text(text)

    def configured(self) -> str:
        """Return the configuration that was written last."""
        return self._config.read_text()

    def start(self) -> None:
        """Start the plugin."""
        self._daemon.start()

    def restart(self) -> None:
        """Stop the plugin if it runs, and start it."""
        if self.running():
            self.stop()
        self.start()

    def reload(self) -> None:
        """Let the plugin read its configuration again."""
        os.kill(self._daemon.pid, signal.SIGHUP)

    def stop(self) -> None:
        """Stop the plugin, and check that it exits with 0 and removes its socket."""
        code = self._daemon.end()
        assert code == 0, f"the plugin's exit code is {code}"
        assert not self.sockets(), f"the plugin left {self.sockets()}"

    def interrupt(self, number: signal.Signals) -> None:
        """End the process with the signal, and start another process."""
        self._daemon.end(number)
        self._daemon.start()

    def sockets(self) -> list[str]:
        """Return the sockets of the process, which may have ended."""
        return [name for name in sockets() if f"-{self._daemon.pid}-" in name]

    def running(self) -> bool:
        """Return whether the process runs."""
        return self._daemon.running

    def identity(self) -> str:
        """Return the process ID."""
        assert self._daemon.running, "the plugin has ended"
        return str(self._daemon.pid)

    def tail(self) -> str:
        """Return the end of the plugin's log."""
        return self._daemon.tail()


class AsPod:
    """The DaemonSet's pod as a static pod."""

    def __init__(
        self,
        directory: Path,
        kubelet: Standalone,
        runtime: ContainerRuntime,
        daemonset: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the configuration to the directory that the pod mounts; by default use deploy/base's DaemonSet."""
        self._name = POD
        self._config = directory / "plugin-config"
        self._config.mkdir(exist_ok=True)
        self.configure(configuration())
        self._kubelet = kubelet
        self._runtime = runtime
        self.manifest = static_pod(self._config, daemonset or the("DaemonSet", yaml.safe_load_all(_BASE.read_text())))
        self._known = ""

    def configure(self, text: str) -> None:
        """Write the configuration for the next start."""
        (self._config / "config.yaml").write_text(text)

    def start(self) -> None:
        """Create the pod."""
        self._kubelet.create(self._name, self.manifest)

    def stop(self) -> None:
        """Delete the pod, and wait until it has ended."""
        container = self.container_id()
        self._kubelet.delete(self._name)
        until(lambda: container not in self._runtime.running(), "the plugin's container has ended")
        assert not sockets(), f"the plugin left {sockets()}"

    def update(self) -> None:
        """Replace the pod as a rolling update does by default: the next one is ready before this one ends."""
        former, self._name = self._name, f"{POD}-{next(_NUMBERS)}"
        self.manifest["metadata"]["name"] = self._name
        self.start()
        until(lambda: self.status()["containerStatuses"][0]["ready"], "the next pod is ready")
        self._kubelet.delete(former)
        until(lambda: former not in self._kubelet.pods(), "the former pod has ended")

    def interrupt(self, number: signal.Signals) -> None:
        """Send the signal to the container's first process; the kubelet restarts the container."""
        self._runtime.signal(self.container_id(), number)

    def container_id(self) -> str:
        """Return the ID of the running container, or of the last one."""
        if self._kubelet.daemon.running:
            self._known = until(self._running, "the plugin's container runs")
        return self._known

    def running(self) -> bool:
        """Return whether the pod exists."""
        return (self._kubelet.manifests / f"{self._name}.json").exists()

    def _running(self) -> str:
        container = self.status()["containerStatuses"][0]
        assert "running" in container["state"], f"the plugin's container: {container['state']}"
        identifier: str = container["containerID"]
        return without_scheme(identifier)

    def identity(self) -> str:
        """Return the ID of the container."""
        return self.container_id()

    def status(self) -> dict[str, Any]:
        """Return the pod's status."""
        status: dict[str, Any] = self._kubelet.pods()[self._name]["status"]
        return status

    def tail(self) -> str:
        """Return the end of the plugin's log."""
        logs = sorted(Path("/var/log/pods").glob(f"*_{POD}-*/*/*.log"), key=os.path.getmtime)
        return "\n".join(f"  {line[:400]}" for log in logs[-2:] for line in log.read_text().splitlines()[-TAIL:])


def static_pod(config: Path, daemonset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a DaemonSet's pod template as a static pod. The README lists the changes."""
    template = daemonset["spec"]["template"]
    spec = template["spec"]
    del spec["serviceAccountName"]
    for volume in spec["volumes"]:
        if "configMap" in volume:
            del volume["configMap"]
            volume["hostPath"] = {"path": str(config), "type": "Directory"}
    for container in spec["containers"]:
        assert container["image"] == PLUGIN_IMAGE, f"the image is {container['image']}"
    metadata = {"name": POD, "namespace": "kube-system", "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
