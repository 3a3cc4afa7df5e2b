"""``aosp-plugin provisioner`` beside a plugin: a privileged process that mounts phones on request."""

import asyncio
import json
from functools import partial
from typing import Any

from tests.simulation.host import Host
from tests.simulation.processes import Process, ProcessKilledError
from tests.simulation.settings import Settings
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.binder.driver.host import Host as PluginHost
    from aosp_plugin.binder.provision.provisioner_socket import ProvisionerError, RequestedPhones


class Provisioner:
    """The provisioner of one plugin. Whenever it ends, its supervisor starts it again."""

    def __init__(self, host: Host, settings: Settings) -> None:
        """Start it with the present configuration."""
        self._host, self._settings = host, settings
        self._late: list[dict[str, Any]] = []
        """The requests that have arrived while it hangs. The plugin does not wait for them any more."""
        self._hangs = self._has_ended = False
        self._start()

    def _start(self) -> None:
        if self._has_ended:
            return
        self.process: Process = self._host.new_process()
        self.process.at_death.append(self._died)
        self._phones = {
            pool.directory: RequestedPhones(pool.directory, PluginHost(), pool.count)
            for pool in self._settings.pools
            if pool.has_provisioner
        }

    def _died(self) -> None:
        self._late.clear()
        self._host.later(self._host.rng.uniform(0.05, 1.5), self._start)

    def end(self) -> None:
        """End it for good."""
        self._has_ended = True
        self.process.kill()

    def hang(self) -> None:
        """Let it answer no request until ``go_on``."""
        self._hangs = True

    def go_on(self) -> None:
        """Perform the requests that have arrived meanwhile."""
        self._hangs = False
        for request in self._late:
            asyncio.get_running_loop().call_soon(self._perform, request)
        self._late.clear()

    def exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the plugin. Raises ProvisionerError if the connection ends before, or it hangs."""
        if self._hangs:
            self._late.append(request)
        answer = None if self._hangs else self._perform(request)
        if answer is None:
            raise ProvisionerError("the provisioner does not answer")
        return answer

    def _perform(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer; None if the process has ended."""
        phones = self._phones.get(request["directory"])
        if phones is None:
            return {"error": f"the provisioner's configuration has no phones in {request['directory']}"}
        work = partial(phones.answer, request["operation"], request["phones"], request.get("limit", 0))
        try:
            self.process.call()
            answer: dict[str, Any] = json.loads(json.dumps(self.process.run(work)))
        except ProcessKilledError:
            return None
        return answer
