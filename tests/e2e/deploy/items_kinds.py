"""Items: the kinds of nodes of the Helm chart, and the host's network."""

from __future__ import annotations

from typing import Final

import yaml

from tests.e2e.deploy.manifests import VALUES, accepted, charted
from tests.e2e.deploy.parts import CHART

OF_EACH_KIND: Final = {"ConfigMap", "DaemonSet", "Job", "Pod", "ResourceClaimTemplate"}


def kinds_are_rendered() -> None:
    """Each kind of nodes has a DaemonSet, a configuration and a test of its own; other objects are as without kinds."""
    values = yaml.safe_load((CHART / "ci" / "kinds-values.yaml").read_text())
    rendered = accepted(charted(*VALUES["kinds"]))
    found = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in rendered}
    for entry in values["nodes"]:
        name = f"aosp-device-plugin-{entry['name']}"
        config = yaml.safe_load(found["ConfigMap", name]["data"]["config.yaml"])
        common = {"version": "v1", "log_format": "json", "verify": "binder"} | values["config"]
        phones = common["phones"] | entry["config"].get("phones", {})
        assert config == common | entry["config"] | {"phones": phones}, config
        template = found["DaemonSet", name]["spec"]["template"]
        pod, test = template["spec"], found["Pod", f"{name}-test-0"]["spec"]
        for spec in (pod, test):
            assert spec["nodeSelector"] == {"aosp.io/binder": "true"} | entry["nodeSelector"], spec["nodeSelector"]
            assert {"name": name, "defaultMode": 0o644} in [volume.get("configMap") for volume in spec["volumes"]], name
        limits = {"cpu": "1", "memory": "256Mi"} | entry.get("resources", {}).get("limits", {})
        assert pod["containers"][0]["resources"]["limits"] == limits, name
        assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        assert ("resourceClaims" in test) == ("token" in str(pod["volumes"])) == ("api" in config), name
        labels, sets = template["metadata"]["labels"], [each for each in rendered if each["kind"] == "DaemonSet"]
        selectors = [each["spec"]["selector"]["matchLabels"] for each in sets]
        assert sum(selector.items() <= labels.items() for selector in selectors) == 1, labels
    others = [manifest for manifest in rendered if manifest["kind"] not in OF_EACH_KIND]
    dra = [manifest for manifest in accepted(charted(*VALUES["dra"])) if manifest["kind"] not in OF_EACH_KIND]
    # A NetworkPolicy has no effect on pods in the host's network.
    assert others == [manifest for manifest in dra if manifest["kind"] != "NetworkPolicy"], others


ITEMS = (kinds_are_rendered,)
