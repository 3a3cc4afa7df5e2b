"""The architectures of guests: x86-64, which is this machine's own, and arm64 in software emulation."""

from typing import Final, NamedTuple


class UserSpace(NamedTuple):
    """What programs in a guest are built for."""

    debian: str
    """Debian's name of the architecture."""
    compiler: str
    """What the names of the compilers begin with."""
    triple: str
    """The name of the directories of its libraries."""
    loader: str
    """The path of the dynamic loader in a root directory."""
    packages: tuple[str, ...]
    """Debian's packages with a compiler of C."""


class Architecture(NamedTuple):
    """What the builders of a guest's parts and QEMU call an architecture."""

    debian: str
    """Debian's name, which is that of ``--arch`` too."""
    machine: str
    """What uname reports."""
    qemu: str
    """The name of QEMU's program."""
    emulated: tuple[str, ...]
    """QEMU's options for a machine in software emulation."""
    console: str
    """The terminal of the first serial line, for the kernel's messages."""
    results: str
    """The terminal of the second one, for what pytest prints."""
    results_options: tuple[str, ...]
    """QEMU's options for the second serial line."""
    packages: tuple[str, ...]
    """Debian's packages with QEMU."""
    user_space: UserSpace
    compat: UserSpace
    """The 32-bit programs that its kernel runs beside those of 64 bits."""
    build: tuple[str, ...] = ("gcc",)
    """Debian's packages that compile for it."""
    make: tuple[str, ...] = ()
    """The variables with which make compiles a kernel for it; empty for this machine's own."""

    @property
    def native(self) -> bool:
        """Whether this machine runs its programs, and the guest uses this machine's."""
        return not self.make

    @property
    def target(self) -> str:
        """What builders of programs for another architecture than this machine's get; otherwise empty."""
        return "" if self.native else self.debian


AMD64: Final = Architecture(
    debian="amd64",
    machine="x86_64",
    qemu="qemu-system-x86_64",
    # Software emulation of several CPUs can deadlock while Debian's kernel patches its own code.
    emulated=("-cpu", "max", "-smp", "1"),
    console="ttyS0",
    results="ttyS1",
    results_options=("-serial", "stdio"),
    packages=("qemu-system-x86",),
    user_space=UserSpace("amd64", "x86_64-linux-gnu-", "x86_64-linux-gnu", "lib64/ld-linux-x86-64.so.2", ("gcc",)),
    compat=UserSpace(
        *("i386", "i686-linux-gnu-", "i386-linux-gnu", "lib/ld-linux.so.2"),
        packages=("gcc-i686-linux-gnu", "libc6-dev-i386-cross"),
    ),
)
ARM64: Final = Architecture(
    debian="arm64",
    machine="aarch64",
    qemu="qemu-system-aarch64",
    # The CPU of Ampere Altra and Graviton 2. It has no pointer authentication, whose emulation is slow.
    emulated=("-machine", "virt", "-cpu", "neoverse-n1", "-smp", "1"),
    console="ttyAMA0",
    results="ttyS0",
    results_options=("-chardev", "stdio,id=results", "-device", "pci-serial,chardev=results"),
    packages=("qemu-system-arm",),
    build=("gcc-aarch64-linux-gnu",),
    make=("ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"),
    user_space=UserSpace(
        *("arm64", "aarch64-linux-gnu-", "aarch64-linux-gnu", "lib/ld-linux-aarch64.so.1"),
        packages=("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
    ),
    compat=UserSpace(
        *("armhf", "arm-linux-gnueabihf-", "arm-linux-gnueabihf", "lib/ld-linux-armhf.so.3"),
        packages=("gcc-arm-linux-gnueabihf", "libc6-dev-armhf-cross"),
    ),
)
ALL: Final = {architecture.debian: architecture for architecture in (AMD64, ARM64)}
