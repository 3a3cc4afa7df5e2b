"""A scan of the host: which binder devices exist.

``health`` evaluates the result, ``store`` remembers it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.names import name_problems, natural_sort
from aosp_plugin.binder.discovery.reader import DeviceReader
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aosp_plugin.binder.devices.sets import Layout
    from aosp_plugin.binder.discovery.binder_device import Found
    from aosp_plugin.binder.driver.host import Driver, Host


class Scan(NamedTuple):
    """The result of a scan."""

    found: dict[str, Found]
    """The binder devices by name, in natural order."""
    skipped: Mapping[str, str]
    """Files that belong to the resource but are not usable, with the reason."""
    directories: frozenset[str]
    """Directories to watch, besides ``sets``: the device directory, the directories of sets that are links, and all
    directories that contain a link on the path to a binder device or to the directory of a set, or its target."""
    links: Mapping[str, Sequence[str]] = {}
    """For each target of a link, which need not exist, and each further link on the path to it: the names of the binder
    devices that depend on it."""
    sets: frozenset[str] = frozenset()
    """Names of the directories of sets in the device directory, to be watched as well. Those that are links are in
    ``directories``."""
    set_links: Mapping[str, Sequence[str]] = {}
    """Like ``links``, for links on the path to the directory of a set: the names of such directories."""
    may_hang: frozenset[str] = frozenset()
    """Names of the binder devices that depend on a file system that may hang, and the possible names in such sets."""


def scan(
    host: Host, driver: Driver, directory: str, layout: Layout, before: Mapping[str, Found] = MappingProxyType({})
) -> Scan:
    """Scan ``directory`` for the binder devices of ``layout``. Raises OSError if it cannot be listed.

    A binder device whose file system is not responding has the kind TIMED_OUT. ``before`` is what the last scan found.

    In a nested layout, each directory that may be a set's is to be watched, because devices may be added to it later.
    It may be a binderfs of its own, a link, or removed since ``directory`` was listed.
    """
    reader = DeviceReader(host, driver, directory)
    usable, skipped = usable_entries(host.listdir(directory), layout)
    if layout.nested:
        usable = [entry for entry in usable if reader.may_be_directory(entry)]
        skipped = directories_among(skipped, DeviceReader(host, driver, directory)) if skipped else {}
    names = natural_sort([name for entry in usable for name in layout.names_in(entry)] if layout.nested else usable)
    found = reader.read_all(names) if layout.nested or host.guarded else reader.read_files(names, before)
    return Scan(
        found,
        skipped,
        frozenset({directory, *reader.targets}),
        reader.links,
        frozenset(reader.sets),
        reader.set_links,
        frozenset(reader.may_hang),
    )


def usable_entries(entries: Iterable[str], layout: Layout) -> tuple[list[str], dict[str, str]]:
    """Return the file names of the device directory that ``layout`` uses, and why it skips others.

    A file is skipped if it belongs to a set but its ID would be invalid. The second result has the reason by name.
    """
    parts = {entry: part for entry in entries if (part := layout.id_part(entry)) is not None and entry != CONTROL_NAME}
    problems = name_problems(parts.values())
    if not problems:
        return [*parts], {}
    skipped = {entry: problems[part] for entry, part in parts.items() if part in problems}
    return [entry for entry in parts if entry not in skipped], skipped


def directories_among(skipped: Mapping[str, str], reader: DeviceReader) -> dict[str, str]:
    """Return those of the files that are skipped which are directories, because no other file belongs to a set."""
    return {entry: problem for entry, problem in skipped.items() if reader.may_be_directory(entry)}
