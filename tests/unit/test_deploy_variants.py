"""What stands beside deploy/base: the variant that makes nodes, the rule that labels hosts, the unit for systemd."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from aosp_plugin import config

DEPLOY = Path(__file__).parents[2] / "deploy"
BASE = DEPLOY / "base"
PROVISION = DEPLOY / "provision"


def load(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


DAEMON_SET = load(BASE / "daemonset.yaml")
POD = DAEMON_SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
VOLUMES = {volume["name"]: volume for volume in POD["volumes"]}
MOUNTS = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}

PATCH = load(PROVISION / "daemonset.yaml")
PATCH_POD = PATCH["spec"]["template"]["spec"]
(PATCHED,) = PATCH_POD["containers"]

UNIT = (DEPLOY / "systemd" / "aosp-device-plugin.service").read_text(encoding="utf-8")
DROP_IN = (DEPLOY / "systemd" / "provision.conf").read_text(encoding="utf-8")


def settings(unit: str, section: str = "Service") -> dict[str, str]:
    """Return the settings of a unit whose names are there once."""
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters="=", comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names are as they are written
    parser.read_string(unit)
    return dict(parser[section])


SERVICE = settings(UNIT)


def test_provision_changes_rights_alone() -> None:
    """The variant is the base with a patch of that DaemonSet and a configuration of its own."""
    kustomization = load(PROVISION / "kustomization.yaml")
    assert kustomization["resources"] == ["../base"]
    assert [patch["path"] for patch in kustomization["patches"]] == ["daemonset.yaml"]
    (base,) = load(BASE / "kustomization.yaml")["configMapGenerator"]
    (generated,) = kustomization["configMapGenerator"]
    assert generated["name"] == base["name"]
    assert (generated["behavior"], generated["files"]) == ("replace", base["files"])
    assert generated["namespace"] == load(BASE / "kustomization.yaml")["namespace"]


def test_provision_patches_what_is_there() -> None:
    """The patch changes the base's container and mounts, and brings one mount and its volume."""
    assert PATCH["metadata"]["name"] == DAEMON_SET["metadata"]["name"]
    assert PATCHED["name"] == CONTAINER["name"]
    known = {mount["mountPath"]: mount["name"] for mount in MOUNTS.values()}
    given = {mount["mountPath"]: mount["name"] for mount in PATCHED["volumeMounts"]}
    assert given.items() - known.items() == {("/host/var/run/cdi", "cdi")}
    assert [volume["name"] for volume in PATCH_POD["volumes"]] == ["cdi"]


def test_provision_rights() -> None:
    """The variant is privileged and sees the host's processes; nothing that the API server refuses beside is left."""
    security = PATCHED["securityContext"]
    assert security["privileged"] is True
    assert security["allowPrivilegeEscalation"] is None
    assert security["capabilities"] is None
    assert PATCH_POD["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & PATCH_POD.keys()


def test_provision_mounts() -> None:
    """The binderfs volume is writable, and a binderfs that is mounted in the pod is mounted on the host."""
    mounts = {mount["name"]: mount for mount in PATCHED["volumeMounts"]}
    assert {name for name, mount in mounts.items() if not mount.get("readOnly")} == {"binderfs", "cdi"}
    assert mounts["binderfs"]["mountPropagation"] == "Bidirectional"


def test_provision_finds_the_cdi_directory() -> None:
    """The host's directory of CDI specs is mounted where the plugin finds it by default."""
    (volume,) = PATCH_POD["volumes"]
    assert volume["hostPath"] == {"path": config.DEFAULTS["cdi_dir"], "type": "DirectoryOrCreate"}


def test_provision_configuration() -> None:
    """The variant's configuration is accepted, and uses each feature that takes its rights."""
    effective, _ = config.load({}, {}, str(PROVISION / "config.yaml"))
    (resource,) = effective.resources
    assert resource.provision is not None
    assert resource.recreate is config.Recreate.ON_START
    assert resource.verify == "probe"
    assert effective.leak_scan_interval > 0


def test_provision_mounts_its_binderfs_below_the_volume() -> None:
    """A pod that starts again would keep a binderfs that is mounted on the volume's own directory."""
    effective, _ = config.load({}, {}, str(PROVISION / "config.yaml"))
    assert effective.resources[0].scan_directory.startswith(VOLUMES["binderfs"]["hostPath"]["path"] + "/")


def test_nfd_labels_what_the_daemon_set_selects() -> None:
    """The NodeFeatureRule sets the label of the nodeSelector."""
    (rule,) = load(DEPLOY / "nfd" / "nodefeaturerule.yaml")["spec"]["rules"]
    assert rule["labels"] == POD["nodeSelector"]


def test_nfd_rule_is_one() -> None:
    """Each way to match names a feature and what is asked of its elements, in operators that NFD has."""
    document = load(DEPLOY / "nfd" / "nodefeaturerule.yaml")
    assert (document["apiVersion"], document["kind"]) == ("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureRule")
    terms = [term for way in document["spec"]["rules"][0]["matchAny"] for term in way["matchFeatures"]]
    assert {term["feature"] for term in terms} == {"kernel.config", "kernel.loadedmodule"}
    for expression in (one for term in terms for one in term["matchExpressions"].values()):
        assert expression in ({"op": "Exists"}, {"op": "In", "value": ["y"]})


def test_unit_runs_the_plugin() -> None:
    """The unit runs `aosp-plugin serve` with a file, with the default directory and address of the configuration."""
    program, *arguments = SERVICE["ExecStart"].split()
    assert program.endswith("/bin/aosp-plugin")
    assert arguments == ["serve", "--config=/etc/aosp-plugin/config.yaml"]


def test_unit_tells_when_it_has_started() -> None:
    """The service has started when it says so, however late; it has to show signs of life, and is always restarted."""
    assert (SERVICE["Type"], SERVICE["TimeoutStartSec"], SERVICE["Restart"]) == ("notify", "infinity", "always")
    assert int(SERVICE["WatchdogSec"]) > 0
    assert settings(UNIT, "Unit")["StartLimitIntervalSec"] == "0"


def test_unit_has_the_rights_of_the_base() -> None:
    """No capability, no new privileges, no device, and one directory to write to: the kubelet's."""
    assert (SERVICE["CapabilityBoundingSet"], SERVICE["AmbientCapabilities"]) == ("", "")
    assert (SERVICE["NoNewPrivileges"], SERVICE["DevicePolicy"], SERVICE["ProtectSystem"]) == (
        "yes",
        "closed",
        "strict",
    )
    assert SERVICE["ReadWritePaths"] == config.DEFAULTS["kubelet_dir"]


@pytest.mark.parametrize(("name", "value"), [("PrivateDevices", "no"), ("ProcSubset", "all")])
def test_unit_hides_nothing_that_the_plugin_looks_at(name: str, value: str) -> None:
    """The nodes in /dev and the driver's numbers in /proc stay in sight."""
    assert SERVICE[name] == value


def test_unit_lets_the_plugin_listen_where_it_does_by_default() -> None:
    """The port of the default address may be bound, and the loopback address be reached."""
    address = config.listen_address(config.DEFAULTS["listen"])
    assert address is not None
    assert SERVICE["SocketBindAllow"] == f"tcp:{address[1]}"
    assert SERVICE["IPAddressAllow"] == "localhost"


def test_unit_has_the_memory_of_the_daemon_set() -> None:
    """Both have the same limit."""
    assert SERVICE["MemoryMax"] + "i" == CONTAINER["resources"]["limits"]["memory"]


def test_drop_in_adds_two_capabilities() -> None:
    """They are those that the search for leaks takes; none is for mounting."""
    assert settings(DROP_IN)["CapabilityBoundingSet"].split() == ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]


def test_drop_in_opens_binder_alone() -> None:
    """Of the devices, the binder driver's may be opened, and the default binderfs be written to."""
    assert settings(DROP_IN)["DeviceAllow"] == "char-*binder* rw"
    provision = config.Provision(count=1)
    assert re.findall(r"^ReadWritePaths=(.*)$", DROP_IN, re.MULTILINE) == [provision.directory, "-/run/cdi"]
    assert settings(DROP_IN, "Unit")["RequiresMountsFor"] == provision.directory
