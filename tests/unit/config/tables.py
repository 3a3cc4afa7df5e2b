"""Every key with values that it may have and values that it may not, and what tests make of files and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aosp_plugin.binder.devices.edits import Isolation
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.config import RESOURCE_KEYS, Config, DeviceList, NumberedSets, Provision, Recreate, load

if TYPE_CHECKING:
    from pathlib import Path

GOOD: dict[str, tuple[str, str, Any]] = {
    "resource_name": ("example.com/x", "example.com/x", "example.com/x"),
    "device_dir": ("/run/nodes", "/run/nodes", "/run/nodes"),
    "device_prefix": ("binder", "binder", "binder"),
    "host_root": ("/host", "/host", "/host"),
    "kubelet_dir": ("/k", "/k", "/k"),
    "listen": ("", '""', ""),
    "verify": ("probe", "probe", Verify.PROBE),
    "isolation": ("strict", "strict", Isolation.STRICT),
    "log_level": ("debug", "debug", "debug"),
    "log_format": ("json", "json", "json"),
    "require_devices": ("true", "true", True),
    "permissions": ("mrw", "mrw", "mrw"),
    "shared_mounts": ("/a,/b:/c", "[/a, '/b:/c']", ("/a", "/b:/c")),
    "shared_devices": ("", "[]", ()),
    "visible_devices_env": ("NODES", "NODES", "NODES"),
    "path_env": ("/bin", "/bin", "/bin"),
    "missing_device_ttl": ("0.5", "0.5", 0.5),
    "container_paths": ("/dev/binder,/dev/hwbinder", "[/dev/binder, /dev/hwbinder]", ("/dev/binder", "/dev/hwbinder")),
    "device_list": ("cdi-cri,envvar", "[cdi-cri, envvar]", (DeviceList.CDI_CRI, DeviceList.ENVVAR)),
    "sets": ("", "{size: 3, stride: 120}", NumberedSets(size=3, stride=120, first=0)),
    "provision": ("", "{count: 9}", Provision(count=9, max=None, directory="/run/aosp-binderfs/devices", first=0)),
    "numa": ("", "{0-179: 0, 180: 1}", {"0-179": 0, "180": 1}),
    "recreate": ("on-start", "on-start", Recreate.ON_START),
    "replicas": ("2", "2", 2),
    "cdi_dir": ("/etc/cdi", "/etc/cdi", "/etc/cdi"),
    "pod_resources_socket": ("", "''", ""),
    "leak_scan_interval": ("300", "300", 300.0),
}
"""Each key with a value as a variable, as YAML, and as it is in the end; none is the default."""

BAD: list[tuple[str, Any]] = [
    ("resource_name", "binder"),
    ("resource_name", 5),
    ("device_dir", "dev"),
    ("device_dir", ""),
    ("device_dir", "/dev\0"),
    ("device_prefix", ""),
    ("device_prefix", 1),
    ("device_prefix", "a b"),
    ("device_prefix", "a/b"),
    ("device_prefix", "a,b"),
    ("device_prefix", "x" * 64),
    ("host_root", "host"),
    ("kubelet_dir", "./kubelet"),
    ("listen", "127.0.0.1"),
    ("listen", ":80"),
    ("listen", 80),
    ("listen", "127.0.0.1:"),
    ("listen", "127.0.0.1:http"),
    ("listen", "127.0.0.1:65536"),
    ("listen", "127.0.0.1:-1"),
    ("verify", "deep"),
    ("verify", True),
    ("isolation", "none"),
    ("log_level", "trace"),
    ("log_level", "INFO"),
    ("log_format", "xml"),
    ("require_devices", "perhaps"),
    ("require_devices", ""),
    ("require_devices", 1),
    ("require_devices", 2),
    ("permissions", ""),
    ("permissions", None),
    ("permissions", "rr"),
    ("permissions", "rwx"),
    ("permissions", "rwmr"),
    ("shared_mounts", ["a"]),
    ("shared_mounts", ["/a", "/b:c"]),
    ("shared_mounts", ["binderfs"]),
    ("shared_mounts", "/a"),
    ("shared_mounts", [1]),
    ("shared_devices", ["dev/ashmem"]),
    ("shared_devices", {"/a": "/b"}),
    ("shared_devices", None),
    ("visible_devices_env", "1A"),
    ("visible_devices_env", None),
    ("visible_devices_env", "A=B"),
    ("visible_devices_env", "A B"),
    ("visible_devices_env", "A\n"),
    ("path_env", "/bin\0"),
    ("path_env", ["/bin"]),
    ("missing_device_ttl", "soon"),
    ("missing_device_ttl", -0.1),
    ("missing_device_ttl", float("inf")),
    ("missing_device_ttl", float("nan")),
    ("missing_device_ttl", None),
    ("missing_device_ttl", True),
    ("container_paths", ["dev/binder"]),
    ("container_paths", [""]),
    ("container_paths", ["/dev/binder", "/dev/binder"]),
    ("container_paths", ["/dev/binder", "//dev/./binder/"]),
    ("container_paths", ["/dev/binder\n"]),
    ("container_paths", "/dev/binder"),
    ("device_list", []),
    ("device_list", ["envvar"]),
    ("device_list", ["cdi"]),
    ("device_list", ["cdi-cri", "cdi-cri"]),
    ("device_list", None),
    ("sets", 3),
    ("sets", "3"),
    ("sets", []),
    ("sets", [{"size": 3}]),
    ("sets", {}),
    ("sets", {"names": ["binder"], "size": 3}),
    ("sets", {"first": 1, "names": ["binder"]}),
    ("sets", {"pattern": "{set}{name}", "size": 3}),
    ("provision", 100),
    ("provision", {}),
    ("provision", ["count"]),
    ("numa", None),
    ("numa", []),
    ("numa", {"a": 0}),
    ("numa", {"": 0}),
    ("numa", {"1-": 0}),
    ("numa", {"-1": 0}),
    ("numa", {-1: 0}),
    ("numa", {"1-2-3": 0}),
    ("numa", {"1\n": 0}),
    ("numa", {"\uff11": 0}),
    ("numa", {"1234567890": 0}),
    ("numa", {"5-4": 0}),
    ("numa", {"0-9": 0, "9-10": 1}),
    ("numa", {"10": 0, "9-11": 0}),
    ("numa", {"07": 0, "7": 0}),
    ("numa", {"7": 0, 7: 0}),
    ("numa", {True: 0}),
    ("numa", {"1": True}),
    ("numa", {"1": "0"}),
    ("numa", {"1": -1}),
    ("numa", {"1": 1024}),
    ("recreate", "always"),
    ("recreate", False),
    ("replicas", 0),
    ("replicas", 1001),
    ("replicas", 1.5),
    ("replicas", True),
    ("replicas", "many"),
    ("cdi_dir", "cdi"),
    ("cdi_dir", ""),
    ("pod_resources_socket", "pod-resources/kubelet.sock"),
    ("pod_resources_socket", None),
    ("leak_scan_interval", -1),
    ("leak_scan_interval", float("inf")),
    ("leak_scan_interval", "never"),
]


def write(path: Path, text: str) -> str:
    """Write a configuration file, and return its path."""
    path.write_text(text, encoding="utf-8")
    return str(path)


def value_of(made: Config, name: str) -> Any:
    """Return the value of a key, of the process or of the first resource."""
    return getattr(made.resources[0] if name in RESOURCE_KEYS else made, name)


def loaded(file: Path, text: str) -> Config:
    """Return the configuration that a file of this text gives, version: v1 put before it."""
    return load({}, {}, write(file, f"version: v1\n{text}\n"))[0]
