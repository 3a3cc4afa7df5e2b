"""Limits on the number of threads, of a container, a user or the host."""

import _thread
import threading

from aosp_plugin.framework.errors import PluginError

SERVING = 32
"""Threads of a process that serves a few resources. gRPC starts up to 16, one for each processor, and crashes if it
cannot."""


def require_threads(count: int = SERVING) -> None:
    """Check that this process may have ``count`` more threads now. Raises PluginError.

    ``Thread.start`` waits until the thread runs: on a busy host, 32 times that took half of the plugin's start.
    """
    checked, ended = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        checked.wait()
        ended.release()

    started = 0
    try:
        while started < count:
            _thread.start_new_thread(wait, ())
            started += 1
    except RuntimeError as error:
        raise PluginError(
            f"cannot start {count} threads: raise the limit that is reached: pids.max of the cgroup (podPidsLimit of "
            "the kubelet, TasksMax of the systemd unit), RLIMIT_NPROC of the user (ulimit -u), or kernel.threads-max"
        ) from error
    finally:
        checked.set()
        for _ in range(started):
            ended.acquire()
