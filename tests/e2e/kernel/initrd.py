"""The guest's initrd: busybox, kernel modules, and a script that mounts the host's files as the guest's root.

The guest's root is an overlay: the host's file tree, read-only over 9p, below a tmpfs. So the guest sees the project,
its virtual environment and the container runtimes at the same paths as the host. A guest of another architecture has a
file tree of its own (``foreign``), in which the project is at the same path.
"""

import gzip
import lzma
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.kernel.architectures import AMD64, Architecture

BUSYBOX: Final = "/bin/busybox"

INIT: Final = f"""#!{BUSYBOX} sh
{BUSYBOX} --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /lower /upper /new
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module parameters; do
    insmod "/modules/$module" $parameters
done </modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose hostroot /lower
mount -t tmpfs -o mode=755 tmpfs /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /new
mount -t tmpfs -o mode=755 tmpfs /new/run
for directory in proc sys dev; do mount --move /$directory /new/$directory; done
mkdir -p /new/dev/pts /new/dev/shm /new/dev/mqueue
mount -t devpts devpts /new/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm
mount -t mqueue mqueue /new/dev/mqueue
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
ifconfig lo 127.0.0.1 up
cp /start /new/run/start
exec switch_root /new {BUSYBOX} sh /run/start
"""


CGROUP_V1: Final = """
umount /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
while read -r controller _ _ enabled; do
    [ "$enabled" = 1 ] || continue
    mkdir "/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
done </proc/cgroups
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
"""
"""Replaces cgroup v2 by a hierarchy of v1 for each controller, and the one that runtimes need besides."""


def start_script(
    command: Sequence[str],
    directory: str,
    environment: Mapping[str, str],
    before: str = "",
    architecture: Architecture = AMD64,
    init: Sequence[str] = (),
) -> str:
    """Return the script that the guest runs after boot: ``command``, then a reboot, which ends QEMU.

    ``before`` are lines of the script that prepare the guest. ``init`` becomes process 1 meanwhile. The second serial
    line carries the output of ``command`` and nothing else.
    """
    results = f"/dev/{architecture.results}"
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    run = f"{shlex.join(command)} </dev/null >{results} 2>/dev/console\n{BUSYBOX} reboot -f"
    return "\n".join(
        [
            f"{BUSYBOX} stty -F {results} raw -echo",
            f"echo '# the guest is up' >{results}",
            *exports,
            before,
            f"cd {shlex.quote(directory)}",
            f"(\n{run}\n) &\nexec {shlex.join(init)}" if init else run,
            "",
        ]
    )


def build(target: Path, start: str, modules: Sequence[tuple[Path, str]] = (), tree: Path = Path("/")) -> None:
    """Write the initrd. The guest inserts ``modules``, pairs of file and parameters, in this order.

    ``tree`` is the file tree that the guest has, and has the busybox.
    """
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for name in ("bin", "modules"):
            (root / name).mkdir()
        shutil.copy(f"{tree}{BUSYBOX}", root / "bin/busybox")
        order = []
        for module, parameters in modules:
            name = module.name.removesuffix(".xz")
            (root / "modules" / name).write_bytes(content(module))
            order.append(f"{name} {parameters}\n")
        (root / "modules/order").write_text("".join(order))
        (root / "start").write_text(start)
        (root / "init").write_text(INIT)
        (root / "init").chmod(0o755)
        target.write_bytes(gzip.compress(_archive(root), 1))


def content(module: Path) -> bytes:
    """Return a module's content; Debian 13 and later compress modules."""
    raw = module.read_bytes()
    return lzma.decompress(raw) if module.suffix == ".xz" else raw


def dependencies(module: bytes) -> list[str]:
    """Return the names of a module's dependencies, from its .modinfo section."""
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    return [name for name in (found[1].decode() if found else "").split(",") if name]


def _archive(root: Path) -> bytes:
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    result = subprocess.run(
        ["cpio", "--quiet", "--create", "--format=newc", "--owner=0:0"],
        cwd=root,
        input=os.fsencode("\n".join(names)),
        stdout=subprocess.PIPE,
        check=True,
    )
    return result.stdout
