"""Which kernels have a driver that is known to be bad."""

import pytest

from aosp_plugin.binder.driver.advisories import advisories


@pytest.mark.parametrize(
    ("driver", "release", "reports"),
    [
        ("c", "6.1.177", "CVE-2026-64468, CVE-2026-64469"),
        ("c", "6.1.178", ""),
        ("c", "6.13.12-arch1-1", "CVE-2026-64468, CVE-2026-64469"),  # a series without a fix
        ("c", "7.2.1", ""),
        ("c", "6.1.0-10-amd64", ""),  # the number of a distribution
        ("rust", "6.18.9", "CVE-2026-43433, CVE-2026-43434; waydroid#2163, CVE-2026-23194; waydroid#2422"),
        ("rust", "6.18.10", "CVE-2026-43433, CVE-2026-43434; waydroid#2422"),
        ("rust", "7.0.0-14-generic", "waydroid#2422"),
        ("c", "unknown", ""),
    ],
)
def test_advisories_of_a_driver_end_with_the_first_fixed_version_of_a_series(
    driver: str, release: str, reports: str
) -> None:
    assert "; ".join(each.reports for each in advisories(driver, release)) == reports
