"""Items: the API server accepts what Helm and kustomize render, and the latter is rendered from the chart."""

from __future__ import annotations

import itertools

import yaml

from hack import manifests as manifests_of_chart
from hack import phone_seccomp
from tests.e2e.deploy.manifests import (
    VALUES,
    accepted,
    charted,
    kustomized,
    require_schema,
    the,
)
from tests.e2e.deploy.parts import DEPLOY, refuses, run

EXAMPLES = {
    "pod.yaml": ["Pod"],
    "redroid.yaml": ["Pod"],
    "redroid-statefulset.yaml": ["Service", "NetworkPolicy", "StatefulSet"],
    "dra/attributes.yaml": ["ResourceClaimTemplate", "Pod"],
    "dra/extended-resource.yaml": ["Pod"],
    "dra/numa.yaml": ["ResourceClaimTemplate", "Pod"],
    "dra/parameters.yaml": ["DeviceClass", "ResourceClaimTemplate", "Pod"],
    "dra/phone.yaml": ["ResourceClaimTemplate", "Pod"],
    "dra/shared.yaml": ["ResourceClaim", "Pod", "Pod"],
    "../remove.yaml": ["ConfigMap", "DaemonSet"],
}
"""The kinds of the objects in each manifest that is used as it is."""


def manifests_are_current() -> None:
    """The YAML for kubectl and kustomize is what `make generate` renders from the chart."""
    outdated = [path.name for path, text in manifests_of_chart.files().items() if path.read_text() != text]
    assert not outdated, f"run `make generate`: {outdated}"


def api_server_takes_kustomize() -> None:
    """The API server accepts deploy/base, deploy/provision, deploy/privileged, deploy/dra and the examples.

    The configuration is that of the directory: kustomize gives its ConfigMap another name, and the pod finds it.
    """
    for name, count in (("base", 4), ("provision", 4), ("privileged", 4), ("dra", 11), ("examples/node", 12)):
        rendered = accepted(kustomized(name))
        assert len(rendered) == count, name
        pod, config = the("DaemonSet", rendered)["spec"]["template"]["spec"], the("ConfigMap", rendered)
        assert config["data"]["config.yaml"] == (DEPLOY / name / "config.yaml").read_text(), name
        assert config["metadata"]["name"] in [each.get("configMap", {}).get("name") for each in pod["volumes"]], name
        assert config["metadata"]["labels"]["app.kubernetes.io/name"] == "aosp-device-plugin", name
    for name, kinds in EXAMPLES.items():
        manifests = accepted(yaml.safe_load_all((DEPLOY / "examples" / name).read_text()))
        assert [manifest["kind"] for manifest in manifests] == kinds, name


def api_server_takes_chart() -> None:
    """The API server accepts the chart's manifests with all tested values."""
    for values in VALUES.values():
        accepted(charted(*values))


def api_server_refuses() -> None:
    """Counter-example: the API server refuses unknown fields, and Bidirectional propagation without privileged."""
    unknown = the("DaemonSet", kustomized("base"))
    unknown["spec"]["template"]["spec"]["hostPIDs"] = True
    refuses(lambda: accepted([unknown]), "unknown field")
    bidirectional = the("DaemonSet", kustomized("provision"))
    container = bidirectional["spec"]["template"]["spec"]["containers"][1]
    container["securityContext"]["privileged"] = False
    refuses(
        lambda: accepted([bidirectional]), "Bidirectional mount propagation is available only to privileged containers"
    )


def no_links_of_services() -> None:
    """No pod of the chart or of kustomize has variables of Services, whatever mounts the phones."""
    by_init_container = ("--set", "provision.mode=init-container", *VALUES["provision"])
    charts = [charted(*values) for values in (*VALUES.values(), by_init_container)]
    overlays = [kustomized(name) for name in ("base", "provision", "privileged", "dra", "examples/node")]
    for manifest in itertools.chain(*charts, *overlays):
        if manifest["kind"] in {"DaemonSet", "Job", "Pod"}:
            pod = manifest["spec"] if manifest["kind"] == "Pod" else manifest["spec"]["template"]["spec"]
            assert pod["enableServiceLinks"] is False, f"{manifest['kind']} {manifest['metadata']['name']}"


def operator_takes_chart() -> None:
    """The Prometheus operator's CRDs accept the PodMonitor and the PrometheusRule, and refuse unknown fields."""
    rendered = charted(*VALUES["everything"])
    require_schema(the("PodMonitor", rendered))
    require_schema(the("PrometheusRule", rendered))
    rule = the("PrometheusRule", rendered)
    rule["spec"]["groups"][0]["rules"][0]["expression"] = "up"
    refuses(lambda: require_schema(rule), "expression")


def profile_is_parsed() -> None:
    """The AppArmor profile for phones is parsed without a warning; with a mistake in it, it is not."""
    features = "/etc/apparmor.d/abi/3.0"  # instead of those of this machine's kernel, which may have no AppArmor
    command = ("apparmor_parser", "--skip-kernel-load", "--skip-cache", "--kernel-features", features)
    profile = (DEPLOY / "apparmor" / "aosp-phone").read_text()
    run(*command, "--warn=all", "--Werror", text=profile)
    refuses(lambda: run(*command, text=profile.replace("deny mount", "deny mounts")), "syntax error")


def filter_is_current() -> None:
    """The seccomp profile for phones is what hack.phone_seccomp writes, from the default of this containerd."""
    assert phone_seccomp.PROFILE.read_text() == phone_seccomp.profile(phone_seccomp.default())


ITEMS = (
    manifests_are_current,
    api_server_takes_kustomize,
    api_server_takes_chart,
    api_server_refuses,
    no_links_of_services,
    operator_takes_chart,
)
