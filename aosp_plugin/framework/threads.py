"""Limits on the number of threads, of a container, a user or the host."""

import threading

from aosp_plugin.framework.errors import PluginError

SERVING = 32
"""Threads of a process that serves a few resources. gRPC starts up to 16, one for each processor, and crashes if it
cannot."""


def require_threads(count: int = SERVING) -> None:
    """Check that this process may have ``count`` more threads now. Raises PluginError."""
    checked = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=checked.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise PluginError(
            f"cannot start {count} threads: raise the limit that is reached: pids.max of the cgroup (podPidsLimit of "
            "the kubelet, TasksMax of the systemd unit), RLIMIT_NPROC of the user (ulimit -u), or kernel.threads-max"
        ) from error
    finally:
        checked.set()
        for thread in started:
            thread.join()
