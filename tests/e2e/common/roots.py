"""A file tree of a suite's packages, and commands in it: compilers of another Debian than this machine's.

The packages are unpacked, not installed, so that none of their scripts runs. Of the links of Debian's alternatives, the
tree has awk alone.
"""

from pathlib import Path
from typing import Final

from tests.e2e.common import suites
from tests.e2e.common.packages import BrokenError, command
from tests.e2e.common.suites import Suite

_BASE: Final = (
    *("base-files", "bash", "coreutils", "dash", "diffutils", "findutils", "grep", "gzip", "mawk", "sed", "tar"),
    "xz-utils",
)
_ENVIRONMENT: Final = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "LC_ALL=C.UTF-8")
_ENTER: Final = """
mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" "$@"
"""


def build(suite: Suite, root: Path, *packages: str) -> list[str]:
    """Unpack packages and all that they depend on below ``root``, and return their names and versions."""
    files = suite.download_all(*_BASE, *packages)
    # It has the links from /bin to /usr/bin, through which other packages are unpacked.
    files.sort(key=lambda file: not file.name.startswith("base-files_"))
    suites.unpack(files, root)
    (root / "usr/bin/awk").symlink_to("mawk")
    return suites.versions(files)


def run(root: Path, script: str, *, seconds: float = 600) -> str:
    """Run a shell script in a file tree, with /dev and /proc, and return its output. Raises BrokenError."""
    enter = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, str(root))
    return command(*enter, *_ENVIRONMENT, "sh", "-e", "-c", script, seconds=seconds, error=BrokenError)
