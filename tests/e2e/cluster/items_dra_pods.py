"""Items: kinds of pods with claims: with init containers, with several claims, and pods that end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import documented, dra, phones
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.ownership import phone_of
from tests.e2e.cluster.scenes import PHONES, events
from tests.e2e.common.report import say
from tests.e2e.kubelet.pods import DONE, container
from tests.e2e.kubelet.waiting import PATIENCE, holds, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()


def phase(cluster: Cluster, name: str) -> str:
    """Return the phase of a pod."""
    return str(cluster.api.get(f"{phones.collection('Pod')}/{name}")["status"].get("phase"))


def end(cluster: Cluster, *names: str) -> None:
    """Delete pods, and wait until no claim is prepared."""
    for name in names:
        phones.remove(cluster, "Pod", name)
    until(lambda: not dra.specs(cluster.machine), "no claim is prepared", seconds=2 * PATIENCE)


@item("An init container and the containers after it have the same phone")
def init_containers(cluster: Cluster) -> None:
    dra.ensure(cluster)
    manifest = dra.pod("prepared")
    used = {"claims": [{"name": "phone"}]}
    manifest["spec"]["initContainers"] = [container("first", then=DONE, resources=used)]
    phones.create(cluster, manifest)
    dra.wait_running(cluster, "prepared", 1)
    assert phone_of(dra.view(cluster, "prepared", "first")) == phone_of(dra.view(cluster, "prepared"))
    end(cluster, "prepared")


@item("A pod that has completed frees its phone: claims are unprepared, and another pod gets it")
def completed(cluster: Cluster) -> None:
    dra.ensure(cluster)
    for number in range(PHONES + 1):
        manifest = dra.pod(f"job-{number}")
        manifest["spec"] |= {"restartPolicy": "Never", "containers": [container("main", then=DONE)]}
        manifest["spec"]["containers"][0]["resources"] = {"claims": [{"name": "phone"}]}
        phones.create(cluster, manifest)
    names = [f"job-{number}" for number in range(PHONES + 1)]
    until(lambda: {phase(cluster, name) for name in names} == {"Succeeded"}, "all jobs ran", seconds=4 * PATIENCE)
    until(lambda: not cluster.api.list(dra.CLAIMS), "their claims are gone", seconds=2 * PATIENCE)
    end(cluster, *names)


@item("A claim that no container names is prepared all the same, and a pod without its claim does not start")
def unused(cluster: Cluster) -> None:
    dra.ensure(cluster)
    manifest = dra.pod("unused")
    del manifest["spec"]["containers"][0]["resources"]
    phones.create(cluster, manifest)
    (pod,) = dra.wait_running(cluster, "unused", 1)
    (claim,) = dra.claims_of(cluster, pod)
    assert dra.prepared(cluster.machine, claim)
    assert not phones.view(cluster, pod).opened
    phones.create(cluster, dra.pod("early", claim="late"))
    path = f"{phones.collection('Pod')}/early"
    holds(lambda: "nodeName" not in cluster.api.get(path)["spec"], "it waits for its claim", seconds=3)
    dra.create(cluster, dra.claim("late", dra.request()))
    dra.wait_running(cluster, "early", 1)
    end(cluster, "unused", "early")
    cluster.api.delete(f"{dra.CLAIMS}/late")


@item(
    "Two claims of a pod, one for each container; parameters for one request reach the containers of that request only"
)
def mapped(cluster: Cluster) -> None:
    dra.ensure(cluster)
    for name in ("left", "right"):
        config = [
            *dra.parameters(environment={"CLAIM": name}),
            *dra.parameters(["second"], environment={"SECOND": name}),
        ]
        dra.create(cluster, dra.claim(name, dra.request("first"), dra.request("second"), config=config))
    manifest = dra.pod("mapped")
    claims = [{"name": name, "resourceClaimName": name} for name in ("left", "right")]
    containers = [
        container(f"{name}-{part}", resources={"claims": [{"name": name, "request": part}]})
        for name in ("left", "right")
        for part in ("first", "second")
    ]
    manifest["spec"] |= {"resourceClaims": claims, "containers": containers}
    phones.create(cluster, manifest)
    dra.wait_running(cluster, "mapped", 1)
    found = set()
    for name in ("left", "right"):
        given = dra.allocated(cluster, cluster.machine, cluster.api.get(f"{dra.CLAIMS}/{name}"))
        for part in ("first", "second"):
            view = dra.view(cluster, "mapped", f"{name}-{part}")
            assert phone_of(view) == given[part], f"{name} {part}: {view.visible}, allocated: {given}"
            expected: Any = (name, name if part == "second" else None)
            variables = view.environment.get("CLAIM"), view.environment.get("SECOND")
            assert variables == expected, f"{name} {part}: {variables}"
            found.add(given[part])
    assert len(found) == PHONES, found
    end(cluster, "mapped")
    for name in ("left", "right"):
        cluster.api.delete(f"{dra.CLAIMS}/{name}")


@item("A claim that is replaced under the same name, after its pod was deleted by force: the new pod waits, then runs")
def same_name(cluster: Cluster) -> None:
    dra.ensure(cluster)
    uids = []
    for _ in range(2):
        dra.create(cluster, dra.claim("again", dra.request()))
        phones.create(cluster, dra.pod("again", claim="again", terminationGracePeriodSeconds=15))
        (pod,) = dra.wait_running(cluster, "again", 1, seconds=6 * PATIENCE)
        assert phone_of(phones.view(cluster, pod))
        uids.append(cluster.api.get(f"{dra.CLAIMS}/again")["metadata"]["uid"])
        cluster.kubectl("delete", "pod", "again", "--force", "--grace-period=0")
        cluster.api.delete(f"{dra.CLAIMS}/again")
        until(lambda: cluster.api.find(f"{dra.CLAIMS}/again") is None, "the claim is gone", seconds=2 * PATIENCE)
    assert len(set(uids)) == 2, uids
    until(lambda: not dra.specs(cluster.machine), "no claim is prepared", seconds=6 * PATIENCE)


SYMPTOMS: Final = {
    "no-template": (dra.claiming(template="absent"), "FailedResourceClaimCreation", "absent"),
    "no-class": (dra.claiming(template="no-class"), "FailedScheduling", "device class absent does not exist"),
    "no-driver": (dra.claiming(template="no-driver"), "FailedScheduling", "cannot allocate all claims"),
}
"""Pods that wait, with the event that docs/dra.md names for it."""


@item("Pods that cannot run have the events that docs/dra.md names")
def symptoms(cluster: Cluster) -> None:
    dra.ensure(cluster)
    dra.create(cluster, dra.template("no-class", dra.request(device_class="absent")))
    manifest = dra.device_class("no-driver")
    manifest["spec"]["selectors"][0]["cel"]["expression"] = 'device.driver == "absent.example.com"'
    dra.create(cluster, manifest)
    dra.create(cluster, dra.template("no-driver", dra.request(device_class="no-driver")))
    page = documented.page("docs/dra.md")
    for name, (options, reason, text) in SYMPTOMS.items():
        phones.create(cluster, phones.pod(name, **options))
        path = f"{phones.collection('Pod')}/{name}"
        say(f"#   {name}: {_event(cluster, path, reason, text)}")
        assert reason in page, f"docs/dra.md does not name {reason}"
    end(cluster, *SYMPTOMS)
    for name in ("no-class", "no-driver"):
        cluster.api.delete(f"{dra.TEMPLATES}/{name}")
    cluster.api.delete(f"{dra.CLASSES}/no-driver")


def _event(cluster: Cluster, path: str, reason: str, text: str) -> str:
    """Wait until a pod has an event with this reason and text, and return its message."""

    def message() -> str:
        found = events(cluster, cluster.api.get(path))
        messages = [message for event, message in found if event == reason and text in message]
        assert messages, f"{found}"
        return messages[0]

    return until(message, f"{path} has an event {reason}")
