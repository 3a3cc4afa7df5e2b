"""Runs in the sandbox: set it up, start the parts, and run the items."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.e2e.common.report import Report, say
from tests.e2e.kubelet import sandbox, scenarios_dra, suite
from tests.e2e.kubelet.archive import busybox_image
from tests.e2e.kubelet.crio import Crio
from tests.e2e.kubelet.managers import real, stand_in
from tests.e2e.kubelet.node import Node, create_devices
from tests.e2e.kubelet.plugins import SHARED, AsPod, AsProcess, configuration
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.runtimes import COMBINATIONS, CRI_O
from tests.e2e.kubelet.standalone import Standalone
from tests.e2e.kubelet.suite import Containerd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from tests.e2e.kubelet.container_runtime import ContainerRuntime
    from tests.e2e.kubelet.items import Item
    from tests.e2e.kubelet.runtimes import Combination
    from tests.e2e.kubelet.scenarios import DeviceManager, Scenario
    from tests.e2e.kubelet.suite import Chapter


class Machine(NamedTuple):
    """A running kubelet and runtime, and the directory for plugins' files."""

    kubelet: Standalone
    runtime: ContainerRuntime
    directory: Path


def main() -> int:
    """Run the items, and return the exit code."""
    options = _options()
    sandbox.set_up()
    os.mkdir(SHARED)
    create_devices()
    busybox_image(options.work / "busybox.tar")
    report = Report()
    selected_chapters = [chapter for chapter in suite.chapters(_combination(options)) if _select(chapter, options)]
    if options.runtime:
        sandbox.hide_unified_cgroups()
        with _machine(options, options.runtime) as machine:
            for chapter in selected_chapters:
                _chapter(chapter, machine, options, report)
        return report.end()
    for containerd in Containerd:
        chapters = [chapter for chapter in selected_chapters if chapter.containerd is containerd]
        selected = _select_scenarios(options) if containerd is Containerd.DEBIAN else []
        if containerd is Containerd.WITH_CDI and options.containerd is None:
            _skip(chapters, options, options.no_containerd, report)
        elif chapters or selected:
            with _machine(options, containerd.name.lower()) as machine:
                for chapter in chapters:
                    _chapter(chapter, machine, options, report)
                _scenarios(selected, machine, report)
    return report.end()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubelet", type=Path, required=True)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--no-image", default="")
    parser.add_argument("--containerd", type=Path)
    parser.add_argument("--no-containerd", default="")
    parser.add_argument("--runtime", default="")
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--oci-runtime", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--items", default="all")
    parser.add_argument("--work", type=Path, required=True)
    return parser.parse_args()


def _combination(options: argparse.Namespace) -> Combination | None:
    return COMBINATIONS[options.runtime] if options.runtime else None


def _select(chapter: Chapter, options: argparse.Namespace) -> list[Item]:
    return suite.select(chapter, options.only, core=options.items == "core", combination=_combination(options))


def _select_scenarios(options: argparse.Namespace) -> list[Scenario]:
    selected = [scenario for scenario in scenarios_dra.ALL if options.only in f"scenarios.{scenario.name}"]
    return [each for each in selected if options.items == "all" or each.name in suite.CORE["scenarios"]]


@contextlib.contextmanager
def _machine(options: argparse.Namespace, name: str) -> Iterator[Machine]:
    """Start a runtime with the pods' image, and a kubelet without any state."""
    directory = options.work / name
    directory.mkdir()
    runtime = _runtime(options, name, directory / "runtime")
    runtime.start()
    runtime.load(options.work / "busybox.tar")
    sandbox.reset_kubelet()
    kubelet = Standalone(options.kubelet, directory / "kubelet", runtime.socket)
    kubelet.start()
    for component, version in (runtime.versions | {"kubelet": kubelet.version}).items():
        say(f"# version {component}: {version}")
    yield Machine(kubelet, runtime, directory)
    kubelet.stop()
    runtime.stop()


def _runtime(options: argparse.Namespace, name: str, directory: Path) -> ContainerRuntime:
    """Return the runtime of ``--runtime``, or the containerd with this name."""
    if name.startswith(CRI_O):
        return Crio(directory, options.programs, oci_runtime=options.oci_runtime)
    if name == options.runtime:
        return Runtime(directory, options.programs, oci_runtime=options.oci_runtime)
    return Runtime(directory, options.containerd if name == Containerd.WITH_CDI.name.lower() else None)


def _skip(chapters: Sequence[Chapter], options: argparse.Namespace, reason: str, report: Report) -> None:
    for chapter in chapters:
        for item in _select(chapter, options):
            report.skip(f"[{chapter.name}] {item.title}", reason)


def _chapter(chapter: Chapter, machine: Machine, options: argparse.Namespace, report: Report) -> None:
    """Run the selected items, and print the logs after each item that failed."""
    missing = chapter.requires.missing(machine.kubelet.minor)
    if chapter.as_pod and options.image is None:
        missing = options.no_image
    if missing:
        _skip([chapter], options, missing, report)
        return
    say(f"# {chapter.title}")
    node, items = _node(chapter, machine, options), _select(chapter, options)
    if items[0] is not chapter.items[0]:
        node.recover()
    for item in items:
        if missing := item.requires.missing(machine.kubelet.minor):
            report.skip(f"[{chapter.name}] {item.title}", missing)
        elif not report.run(f"[{chapter.name}] {item.title}", partial(item.check, node)):
            _print_logs(node)
            node.recover()
    node.tear_down()


def _node(chapter: Chapter, machine: Machine, options: argparse.Namespace) -> Node:
    kubelet, runtime, directory = machine
    plugin: AsPod | AsProcess
    if chapter.as_pod:
        runtime.load(options.image)
        plugin = AsPod(directory, kubelet, runtime)
        plugin.configure(chapter.configuration)
    else:
        plugin = AsProcess(directory / chapter.name, chapter.configuration, chapter.program)
    return Node(kubelet, runtime, plugin, resource=chapter.resource, devices=chapter.devices, each=chapter.each)


def _scenarios(selected: Sequence[Scenario], machine: Machine, report: Report) -> None:
    """Run each scenario on the stand-in kubelet and on the real one."""
    if selected:
        say("# scenarios, on the stand-in kubelet and on the real one")
    node = Node(machine.kubelet, machine.runtime, AsProcess(machine.directory / "scenarios", configuration()))
    minor = machine.kubelet.minor
    for scenario in selected:
        if missing := scenario.requires.missing(minor):
            report.skip(f"[real] {scenario.title}", missing)
            continue
        report.run(f"[stand-in] {scenario.title}", lambda: asyncio.run(_run(stand_in(minor), scenario)))  # noqa: B023
        if not report.run(f"[real] {scenario.title}", lambda: asyncio.run(_run(real(node), scenario))):  # noqa: B023
            _print_logs(node)


async def _run(manager: AbstractAsyncContextManager[DeviceManager], scenario: Scenario) -> None:
    async with manager as kubelet:
        await scenario.check(kubelet)


def _print_logs(node: Node) -> None:
    logs = {
        "kubelet": node.kubelet.daemon.tail(),
        "plugin": node.plugin.tail(),
        node.runtime.daemon.name: node.runtime.daemon.tail(),
    }
    for name, tail in logs.items():
        say(f"# end of the log of {name}:\n{tail}")


if __name__ == "__main__":
    raise SystemExit(main())
