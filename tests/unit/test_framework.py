"""The framework is for any device and any program: it has no name of this one."""

import re
from pathlib import Path

import aosp_plugin.framework

FRAMEWORK = Path(aosp_plugin.framework.__file__).parent
VERSION = "from aosp_plugin import __version__"


def test_framework_has_no_name_of_this_program_but_that_of_its_package() -> None:
    sources = set(FRAMEWORK.rglob("*.py")) - set((FRAMEWORK / "api").iterdir())
    assert len(sources) > 30
    named = [
        f"{path.relative_to(FRAMEWORK)}: {line}"
        for path in sorted(sources)
        for line in path.read_text().splitlines()
        if line != VERSION and re.search("(?i)aosp|binder|android|phone", line.replace("aosp_plugin.framework", ""))
    ]
    assert named == []
