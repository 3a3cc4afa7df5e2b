"""A stand-in kubelet to test device plugins against: no cluster, no root, no containers.

:class:`Kubelet` is a kubelet's device manager on real unix sockets. It serves ``kubelet.sock``, dials the plugins that
register, follows their ListAndWatch streams, admits pods and keeps the checkpoint, like the kubelet that
:class:`KubeletVersion` selects, the newest by default. The plugin can be any program that serves the device plugin API
v1beta1 on a unix socket.
There are three ways to use it:

- ``kubelet-standin DIR`` runs it as a command, for plugins in any language: it prints a line for each event and
  reads commands from standard input. See the README.
- :mod:`kubelet_standin.pytest_plugin` has pytest fixtures, which pytest loads by itself.
- The class itself, :class:`Kubelet`, is an async context manager.

:meth:`Kubelet.wait_for` does not poll: it evaluates its condition after each change, and its TimeoutError describes the
kubelet's state. ``Kubelet.faults`` injects faults (a Register call that hangs, garbage on the socket), ``drop_streams``
and ``stop`` break connections, and ``version=KubeletVersion.V1_36`` has a bug that plugins still meet in the field.
``seed`` determines everything that is random. ``on_event`` receives each :class:`Event`.

:class:`PodResources` serves the podresources API, which returns the devices of each pod. :class:`DraKubelet` is the
kubelet's other half, for DRA drivers, and :mod:`kubelet_standin.apiserver` has a stand-in API server.

Not modelled: the topology manager (its policy is ``none``), and running containers: when a pod is admitted again, the
kubelet treats it as after a reboot.

The package loads its modules on first use, so that pytest can load the fixtures without gRPC. Its names are those of
:mod:`kubelet_standin.deviceplugin` and :mod:`kubelet_standin.dra`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubelet_standin.deviceplugin import *  # noqa: F403 - one list of the names is enough
    from kubelet_standin.dra import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    for module in map(import_module, ("kubelet_standin.deviceplugin", "kubelet_standin.dra")):
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
