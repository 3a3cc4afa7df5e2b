"""Versions of the binder driver that are known to be bad, with the reports of it.

``make docs`` writes the table in docs/hosts.md from them.
"""

import re
from typing import NamedTuple


class Advisory(NamedTuple):
    """What is wrong with a driver in some versions of Linux."""

    driver: str
    """c or rust."""
    since: str
    fixed: str
    """The first version without it, of each series that has a fix, and at last of Linux as a whole; empty if none."""
    effect: str
    reports: str


ADVISORIES = (
    Advisory(
        "c",
        "5.2",
        "5.10.261, 5.15.212, 6.1.178, 6.6.145, 6.12.96, 6.18.39, 7.1.4, 7.2",
        "processes with a device can make the kernel use freed memory",
        "CVE-2026-64468, CVE-2026-64469",
    ),
    Advisory(
        "rust",
        "6.18",
        "6.18.19, 6.19.9, 7.0",
        "processes with a device can write to its read-only buffers",
        "CVE-2026-43433, CVE-2026-43434",
    ),
    Advisory(
        "rust",
        "6.18",
        "6.18.10, 6.19",
        "transactions of Android fail; the kernel logs `Fixups oob`",
        "waydroid#2163, CVE-2026-23194",
    ),
    Advisory(
        "rust",
        "6.18",
        "",
        "transactions of more than 1 MB fail with ENOSPC, and services of Android abort; seen with 7.2.2",
        "waydroid#2422",
    ),
)


def advisories(driver: str, release: str) -> list[Advisory]:
    """Return what is known of a driver in a kernel with this release (``uname -r``).

    The number of a distribution, such as 6.8.0-45-generic, does not tell which fixes a kernel has.
    """
    version = _numbers(release)
    return [each for each in ADVISORIES if each.driver == driver and _affects(each, version)]


def _affects(advisory: Advisory, version: list[int]) -> bool:
    fixed = [_numbers(text) for text in advisory.fixed.split(", ") if text]
    if version < _numbers(advisory.since) or not fixed:
        return version >= _numbers(advisory.since)
    series = [each for each in fixed if each[:2] == version[:2]]
    return version[2:] > [0] and version < (series or fixed)[-1]


def _numbers(version: str) -> list[int]:
    """Return the numbers with which a version begins, such as 6, 18 and 9 of 6.18.9-arch1."""
    match = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in match[0].split(".")] if match else []
