"""What claims can ask for: shared phones, requests for containers, attributes, parameters."""

import re
from typing import Final

import yaml

from tests.e2e.cluster import documented, dra, outside, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import RENDER_NODE
from tests.e2e.cluster.phones import PATHS, phone_of
from tests.e2e.cluster.plugin import SIZE
from tests.e2e.cluster.scenes import PHONES, events
from tests.e2e.common.images import BUSYBOX
from tests.e2e.common.waiting import PATIENCE, holds, until
from tests.e2e.deploy.parts import DEPLOY

EXAMPLES: Final = DEPLOY / "examples" / "dra"
MANY: Final = 120


def end(cluster: Cluster, *names: str) -> None:
    """Delete pods, and wait until their claims are unprepared."""
    claims = cluster.api.list(dra.CLAIMS)
    for name in names:
        phones.remove(cluster, "Pod", name)
    dra.wait_unprepared(cluster.machine, *claims)


def test_shared(cluster: Cluster, driver: None) -> None:
    """A claim by name: pods and sidecars share its phone; it is unprepared after the last pod, and the claim stays."""
    machine = cluster.machine
    dra.create(cluster, dra.claim("shared", dra.request()))
    phones.run(cluster, dra.pod("first", "main", "sidecar", claim="shared"))
    spec = dra.specs(machine)
    phones.run(cluster, dra.pod("second", claim="shared"))
    found = {phone_of(phones.view(cluster, *place)) for place in (("first",), ("first", "sidecar"), ("second",))}
    assert len(found) == 1, f"they have {found}"
    claim = cluster.api.get(f"{dra.CLAIMS}/shared")
    assert len(claim["status"]["reservedFor"]) == 2, claim["status"]
    assert dra.specs(machine) == spec, "the claim was prepared again for the second pod"
    phones.remove(cluster, "Pod", "first")
    holds(lambda: dra.prepared(machine, claim), "the second pod's claim is prepared", seconds=3)
    cluster.kubectl("exec", "second", "--", "/bin/busybox", "sh", "-c", "for d in /dev/*binder*; do : <> $d; done")
    end(cluster, "second")
    claim = cluster.api.get(f"{dra.CLAIMS}/shared")
    until(lambda: "allocation" not in cluster.api.get(f"{dra.CLAIMS}/shared").get("status", {}), "it is not allocated")
    phones.run(cluster, dra.pod("third", claim="shared"))
    end(cluster, "third")
    cluster.api.delete(f"{dra.CLAIMS}/shared")


def test_mapped(cluster: Cluster, driver: None) -> None:
    """A claim with two requests: each container has the phone and the variables of its request."""
    config = [*dra.parameters(environment={"A": "1"}), *dra.parameters(["second"], environment={"B": "2"})]
    dra.create(cluster, dra.template("two", dra.request("first"), dra.request("second"), config=config))
    (pod,) = phones.run(cluster, dra.pod("mapped", "one=first", "other=second", template="two"))
    (claim,) = dra.claims_of(cluster, pod)
    given = dra.allocated(cluster, cluster.machine, claim)
    for name, part, variables in (("one", "first", ("1", None)), ("other", "second", ("1", "2"))):
        view = phones.view(cluster, "mapped", name)
        assert phone_of(view) == given[part], f"{name}: {view.visible}, allocated: {given}"
        found = view.environment.get("A"), view.environment.get("B")
        assert found == variables, f"{name}: {found}"
    end(cluster, "mapped")


def _why(cluster: Cluster, name: str) -> str:
    """Return the scheduler's reason why a pod waits."""

    def reason() -> str:
        pod = cluster.api.get(f"{phones.collection('Pod')}/{name}")
        return next((text for reason, text in events(cluster, pod) if reason == "FailedScheduling"), "")

    return until(reason, "the scheduler says why")


def test_parameters(cluster: Cluster, driver: None) -> None:
    """Parameters: variables of class and claim, container paths, and a device of the host that the class allows."""
    cluster.machine.create_render_node()
    dra.create(
        cluster,
        dra.device_class("tuned", environment={"A": "class", "B": "class"}, allowedDevices=["/dev/dri/renderD*"]),
    )
    paths = ["/dev/phone/binder", "/dev/phone/hwbinder", "/dev/phone/vndbinder"]
    config = dra.parameters(environment={"A": "claim"}, containerPaths=paths, devices=[RENDER_NODE])
    dra.create(cluster, dra.template("tuned", dra.request(device_class="tuned"), config=config))
    phones.run(cluster, dra.pod("tuned", template="tuned"))
    view = phones.view(cluster, "tuned")
    assert (view.environment.get("A"), view.environment.get("B")) == ("claim", "class"), view.environment
    assert [path for path in paths if path in view.bound] == paths, view.bound
    assert not [path for path in PATHS if path in view.bound], view.bound
    cluster.kubectl("exec", "tuned", "--", "/bin/busybox", "test", "-c", RENDER_NODE)
    end(cluster, "tuned")


def test_examples(cluster: Cluster, driver: None) -> None:
    """Each example of deploy/examples/dra runs as it is written, on a node that has what it asks for."""
    cluster.machine.create_render_node()
    for path in sorted(EXAMPLES.glob("*.yaml")):
        text = re.sub(r"image: \S+", f"image: {BUSYBOX}\n      imagePullPolicy: Never", path.read_text())
        text = text.replace("- /bin/sh", "- /bin/busybox\n        - sh")
        names = [part["metadata"]["name"] for part in yaml.safe_load_all(text) if part["kind"] == "Pod"]
        cluster.kubectl("apply", "--filename=-", text=text)
        # No device of this machine has a NUMA node.
        if path.stem == "numa":
            assert "cannot allocate all claims" in _why(cluster, *names)
        else:
            running = ("--for=jsonpath={.status.phase}=Running", "--timeout=60s")
            cluster.kubectl("wait", *running, *(f"pod/{name}" for name in names))
        cluster.kubectl("delete", "--filename=-", "--wait", "--timeout=60s", text=text)
    until(lambda: not dra.specs(cluster.machine), "no claim is prepared", seconds=2 * PATIENCE)


def test_many(cluster: Cluster, driver: None) -> None:
    """120 pods with a claim each are created at once: each has a phone of its own, and at the end none is prepared."""
    machine = cluster.machine
    machine.create_devices(MANY * SIZE)
    dra.wait_published(cluster, machine, MANY)
    phones.run(cluster, dra.deployment("many", MANY), seconds=10 * PATIENCE)
    assert [len(devices) for _, devices in outside.holders(machine)] == [SIZE] * MANY
    assert not outside.conflicts(machine), outside.conflicts(machine)
    phones.remove(cluster, "Deployment", "many", seconds=10 * PATIENCE)
    until(lambda: not dra.specs(machine), "no claim is prepared", seconds=2 * PATIENCE)
    machine.device_tool("delete")
    machine.create_devices()
    dra.wait_published(cluster, machine, PHONES)


def test_page(cluster: Cluster, driver: None) -> None:
    """The commands of docs/deploy.md for DRA, and `helm test`, which claims a phone and checks it from inside."""
    listed = documented.shell(documented.command("kubectl get resourceslices"))
    assert cluster.machine.name in listed, listed
    tested = documented.shell(documented.command("helm test"))
    assert "ok      BINDER_VISIBLE_DEVICES=aosp_binder" in tested, tested
    left = cluster.kubectl("-n", plugin.NAMESPACE, "get", "pods,resourceclaims,resourceclaimtemplates", "--output=name")
    assert "-test-" not in left, left
