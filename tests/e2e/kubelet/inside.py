"""What runs in the sandbox: furnish it, start the parts, go through the items."""

from __future__ import annotations

import argparse
import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.common.report import Report, say
from tests.e2e.kubelet import sandbox, scenarios
from tests.e2e.kubelet.archive import busybox_image
from tests.e2e.kubelet.managers import real, stand_in
from tests.e2e.kubelet.node import Node, create_nodes
from tests.e2e.kubelet.plugins import SHARED, AsPod, AsProcess
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.standalone import Standalone
from tests.e2e.kubelet.suite import items_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from tests.e2e.kubelet.items import Item
    from tests.e2e.kubelet.scenarios import DeviceManager, Scenario

CHAPTERS: Final = ("process", "pod", "scenarios")


def main() -> int:
    """Go through the items, and return the exit code."""
    options = _options()
    sandbox.furnish()
    report = Report()
    runtime = Runtime(options.work / "runtime")
    kubelet = Standalone(options.kubelet, options.work / "kubelet", runtime.socket)
    _prepare(options.work, kubelet, runtime)
    for chapter in CHAPTERS[:-1]:
        items = [item for item in items_for(chapter) if options.only in f"{chapter}.{item.name}"]
        if chapter == "pod" and options.image is None:
            report.skip(f"[pod] {len(items)} items", options.why_no_image)
        elif items:
            _run(items, chapter, _node(chapter, options, kubelet, runtime), report)
    _scenarios(options.only, Node(kubelet, runtime, AsProcess(options.work)), report)
    return report.end()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubelet", type=Path, required=True)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--why-no-image", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--work", type=Path, required=True)
    return parser.parse_args()


def _prepare(work: Path, kubelet: Standalone, runtime: Runtime) -> None:
    """Have the device nodes, the runtime with an image for pods, and the kubelet."""
    os.mkdir(SHARED)
    create_nodes()
    runtime.start()
    busybox_image(work / "busybox.tar")
    runtime.load(work / "busybox.tar")
    kubelet.start()


def _node(chapter: str, options: argparse.Namespace, kubelet: Standalone, runtime: Runtime) -> Node:
    if chapter == "process":
        return Node(kubelet, runtime, AsProcess(options.work))
    runtime.load(options.image)
    return Node(kubelet, runtime, AsPod(options.work, kubelet, runtime))


def _run(items: Sequence[Item], chapter: str, node: Node, report: Report) -> None:
    """Run the items, and show the logs after each that failed."""
    say(f"# the plugin as a {chapter}")
    if items[0] is not items_for(chapter)[0]:
        node.recover()
    for item in items:
        if not report.run(f"[{chapter}] {item.title}", partial(item.check, node)):
            _show_logs(node)
            node.recover()
    node.leave()


def _scenarios(only: str, node: Node, report: Report) -> None:
    """Try each scenario on the stand-in, and on the real kubelet."""
    say("# scenarios, on the stand-in kubelet and on the real one")
    for scenario in scenarios.ALL:
        if only in f"scenarios.{scenario.name}":
            report.run(f"[stand-in] {scenario.title}", lambda: asyncio.run(_try(stand_in(), scenario)))  # noqa: B023
            if not report.run(f"[real] {scenario.title}", lambda: asyncio.run(_try(real(node), scenario))):  # noqa: B023
                _show_logs(node)


async def _try(manager: AbstractAsyncContextManager[DeviceManager], scenario: Scenario) -> None:
    async with manager as kubelet:
        await scenario.check(kubelet)


def _show_logs(node: Node) -> None:
    logs = {
        "kubelet": node.kubelet.daemon.tail(),
        "plugin": node.plugin.tail(),
        "containerd": node.runtime.daemon.tail(),
    }
    for name, tail in logs.items():
        say(f"# the end of the log of {name}\n{tail}")


if __name__ == "__main__":
    raise SystemExit(main())
