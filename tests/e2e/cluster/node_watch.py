"""What a Node object has shown over a time."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.plugin import PHONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine


@contextlib.contextmanager
def amounts(cluster: Cluster, machine: Machine, resource: str = PHONE) -> Iterator[list[tuple[int, int]]]:
    """Record (capacity, allocatable) of the Node object, as it is now and after each change.

    At the end, raises the error that has ended the record early.
    """
    path = f"{CORE}/nodes"
    node = cluster.api.get(f"{path}/{machine.name}")
    seen: list[tuple[int, int]] = []
    ended = threading.Event()

    def note(status: dict[str, dict[str, str]]) -> None:
        found = int(status["capacity"].get(resource, 0)), int(status["allocatable"].get(resource, 0))
        if not seen or seen[-1] != found:
            seen.append(found)

    def record(version: str) -> None:
        selector = f"metadata.name={machine.name}"
        while not ended.is_set():
            # From the last version on, so that nothing is missed between two watches.
            for event in cluster.api.watch(path, 1, fieldSelector=selector, resourceVersion=version):
                version = event["object"]["metadata"]["resourceVersion"]
                note(event["object"]["status"])

    note(node["status"])
    with ThreadPoolExecutor(1) as executor:
        recorded = executor.submit(record, node["metadata"]["resourceVersion"])
        try:
            yield seen
        finally:
            ended.set()
    recorded.result()  # raises the error of the watch
