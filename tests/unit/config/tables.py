"""Values of every key, and helpers that load configuration files."""

from pathlib import Path
from typing import Any

import yaml

from aosp_plugin.config.keys import KEYS, RESOURCE_KEYS, Config
from aosp_plugin.config.sources import load
from aosp_plugin.framework.errors import ConfigError

EXAMPLES: dict[str, Any] = {name: yaml.safe_load(key.example) for name, key in KEYS.items()}
"""The example of each key, as YAML reads it."""

REQUIRED = {"slice_devices": "sets: {size: 1}\n"}
"""What a key requires besides."""

INVALID: dict[str, list[Any]] = {
    "resource_name": ["binder", 5],
    "api": ["dra/v1", None],
    "device_dir": ["dev", "/dev\0"],
    "device_prefix": ["", 1, "a b", "x" * 64],
    "host_root": ["host"],
    "kubelet_dir": ["./kubelet"],
    "listen": ["127.0.0.1", ":80", 80, "a:http", "a:65536", "a:1_0", "a:\uff11"],
    "status_listen": [":80", 80],
    "allowed_hosts": ["a.example", [""], ["a:80"], ["*.example"], ["a."], ["x" * 64], ["\u00e4.example"]],
    "runbook_url": ["docs/runbook.md", "ftp://a/b", "https://", "https://a/b#c", "https://[", None],
    "verify": ["deep", True],
    "isolation": ["none"],
    "log_level": ["INFO"],
    "log_format": ["xml"],
    "shared_mounts": [
        *(["a"], ["/a:"], ["/a:/b:rw"], ["binderfs"], ["binderfs/x:/b"], "/a", [1], ["binderfs:/{id}"]),
        *(["/{id}/a"], ["/a/{Number}"], ["/a/{id"], ["/a/{id}:/b/{id}"], ["/a/{id}/../b"], ["/a:/{id}"]),
    ],
    "shared_devices": [["dev/ashmem"], ["/dev/fuse:/dev/fuse:rwm"], ["binderfs:/dev/x"], {"/a": "/b"}, [1]],
    "spread_devices": [["dri"], ["/dev/x", "/dev//x"], ["/dev/x\n"], [1]],
    "slice_devices": [["/dev/loop*"], {}, [{"path": path, "count": 1} for path in ("/dev/loop*", "/dev//loop*")]],
    "visible_devices_env": ["1A", "A=B", "A\n", "PATH", "LD_PRELOAD"],
    "path_env": ["/bin\0", "/bin\x85", "/bin\udcff", ["/bin"]],
    "missing_device_ttl": ["5m", -0.1, float("inf"), float("nan"), True],
    "container_paths": [["dev/binder"], ["/dev/binder", "//dev/./binder/"]],
    "device_list": [[], ["cdi"], ["cdi-cri", "cdi-cri"]],
    "sets": [3, {}, {"names": ["binder"], "size": 3}],
    "phones": [120, {}],
    "numa": [
        *([], {"7": 0, 7: 0}, {True: 0}, {"1": "0"}, {"1": -1}, {"1": 1024}, {"07": 0, "7": 0}),
        *({text: 0} for text in ("a", "1-2-3", "1\n", "\uff11", "5-4")),
    ],
    "provisioned_by": ["init-container"],
    "recreate": ["always", False],
    "replicas": [0, 1001, 1.5, True],
    "cdi_dir": ["cdi"],
    "pod_resources_socket": ["pod-resources/kubelet.sock", None],
    "service_account_dir": ["serviceaccount"],
    "node_events": ["perhaps"],
    "startup_taint": [None, "a b", "A.io/a", "a/b/c", "x" * 64, "a\n", "node.kubernetes.io/not-ready"],
}

INVALID_PAIRS = [(name, value) for name, values in INVALID.items() for value in values]


def write(path: Path, text: str) -> str:
    """Write a configuration file, and return its path."""
    path.write_text(text, encoding="utf-8")
    return str(path)


def value_of(config: Config, name: str) -> Any:
    """Return the value of a key, of the process or of the first resource."""
    return getattr(config.resources[0] if name in RESOURCE_KEYS else config, name)


def loaded(file: Path, text: str) -> Config:
    """Return the configuration of a file with this text and a version."""
    return load({}, {}, write(file, f"version: v1\n{text}\n"))[0]


def error_of(file: Path, text: str) -> str:
    """Return the error of a file with this text, without the path of the file; empty if the file has none."""
    try:
        load({}, {}, write(file, text))
    except ConfigError as error:
        message = str(error)
        assert message.startswith(f"file {file}"), message
        assert "\n" not in message
        return message.removeprefix(f"file {file}").removeprefix(": ")
    return ""
