"""What runs in the sandbox: furnish it, start the parts, go through the items."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.e2e.common.report import Report, say
from tests.e2e.kubelet import sandbox, scenarios
from tests.e2e.kubelet.archive import busybox_image
from tests.e2e.kubelet.managers import real, stand_in
from tests.e2e.kubelet.node import Node, create_nodes
from tests.e2e.kubelet.plugins import SHARED, AsPod, AsProcess, configuration
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.standalone import Standalone
from tests.e2e.kubelet.suite import CHAPTERS, Chapter, Containerd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from tests.e2e.kubelet.scenarios import DeviceManager, Scenario


class Machine(NamedTuple):
    """A kubelet and a runtime that run, and where plugins keep their files."""

    kubelet: Standalone
    runtime: Runtime
    directory: Path


def main() -> int:
    """Go through the items, and return the exit code."""
    options = _options()
    sandbox.furnish()
    os.mkdir(SHARED)
    create_nodes()
    busybox_image(options.work / "busybox.tar")
    report = Report()
    for containerd in Containerd:
        chapters = [one for one in CHAPTERS if one.containerd is containerd and one.wanted(options.only)]
        wanted = [one for one in scenarios.ALL if options.only in f"scenarios.{one.name}"]
        compared = wanted if containerd is Containerd.DEBIAN else []
        if containerd is Containerd.WITH_CDI and options.containerd is None:
            _skip(chapters, options, options.why_no_containerd, report)
        elif chapters or compared:
            with _machine(options, containerd) as machine:
                for chapter in chapters:
                    _chapter(chapter, machine, options, report)
                _scenarios(compared, machine, report)
    return report.end()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubelet", type=Path, required=True)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--why-no-image", default="")
    parser.add_argument("--containerd", type=Path)
    parser.add_argument("--why-no-containerd", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--work", type=Path, required=True)
    return parser.parse_args()


@contextlib.contextmanager
def _machine(options: argparse.Namespace, containerd: Containerd) -> Iterator[Machine]:
    """Have a runtime with an image for pods, and a kubelet that has never run before."""
    directory = options.work / containerd.name.lower()
    directory.mkdir()
    programs = options.containerd if containerd is Containerd.WITH_CDI else None
    runtime = Runtime(directory / "runtime", programs)
    runtime.start()
    runtime.load(options.work / "busybox.tar")
    sandbox.forget_kubelet()
    kubelet = Standalone(options.kubelet, directory / "kubelet", runtime.socket)
    kubelet.start()
    say(f"# {runtime.version}, {kubelet.version}")
    yield Machine(kubelet, runtime, directory)
    kubelet.stop()
    runtime.stop()


def _skip(chapters: Sequence[Chapter], options: argparse.Namespace, why: str, report: Report) -> None:
    for chapter in chapters:
        report.skip(f"[{chapter.name}] {len(chapter.wanted(options.only))} items", why)


def _chapter(chapter: Chapter, machine: Machine, options: argparse.Namespace, report: Report) -> None:
    """Run the items that are wanted, and show the logs after each that failed."""
    if chapter.as_pod and options.image is None:
        _skip([chapter], options, options.why_no_image, report)
        return
    say(f"# {chapter.title}")
    node, items = _node(chapter, machine, options), chapter.wanted(options.only)
    if items[0] is not chapter.items[0]:
        node.recover()
    for item in items:
        if not report.run(f"[{chapter.name}] {item.title}", partial(item.check, node)):
            _show_logs(node)
            node.recover()
    node.leave()


def _node(chapter: Chapter, machine: Machine, options: argparse.Namespace) -> Node:
    kubelet, runtime, directory = machine
    plugin: AsPod | AsProcess
    if chapter.as_pod:
        runtime.load(options.image)
        plugin = AsPod(directory, kubelet, runtime)
        plugin.configure(chapter.configuration)
    else:
        plugin = AsProcess(directory / chapter.name, chapter.configuration)
    return Node(kubelet, runtime, plugin, resource=chapter.resource, devices=chapter.devices, each=chapter.each)


def _scenarios(wanted: Sequence[Scenario], machine: Machine, report: Report) -> None:
    """Try each scenario on the stand-in, and on the real kubelet."""
    if wanted:
        say("# scenarios, on the stand-in kubelet and on the real one")
    node = Node(machine.kubelet, machine.runtime, AsProcess(machine.directory / "scenarios", configuration()))
    for scenario in wanted:
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
