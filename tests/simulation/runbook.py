"""What the operator of a simulated node does about claims of a former configuration: what the runbook says."""

import copy
import json
from typing import TYPE_CHECKING, Any

from tests.simulation.settings import Settings

if TYPE_CHECKING:
    from tests.simulation.world import World


class Runbook:
    """Configures what these claims require, ends their pods, and then configures again what was intended."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._intended: Settings | None = None
        """The configuration that the operator returns to; None if it is the present one."""
        self._claim = ""
        """The UID of the claim for which the present configuration is."""
        self.changed = False
        """Whether the last call has changed the configuration."""

    def follow(self) -> list[str]:
        """Do the next step if it is due; return what remains to be done."""
        world, records = self._world, self._records()
        self.changed = False
        intended = self._intended or world.settings
        former = [path for path, content in records.items() if not intended.serves(*_place(content))]
        if self._intended is None and not former:
            return []
        if self._intended is None and not world.reports_unserved_claims():
            return ["claims of a former configuration are not reported"]
        if self._intended is not None and (of_claim := self._of_claim(records)):
            return [f"{path} stays" for path in of_claim]
        if former:
            claim = records[former[0]]["claim"]
            self._intended, self._claim = intended, claim["uid"]
            world.settings = copy.deepcopy(intended)
            for path in sorted(self._of_claim(records), key=former[0].__eq__):  # the last is served in any case
                world.settings.serve(*_place(records[path]))
            if claim["name"] in world.claims.pods:
                world.claims.end(claim["name"])
        else:
            self._intended, world.settings = None, intended
        self.changed = True
        world.apply()
        world.reconfigured = ""  # no fault
        return ["claims of a former configuration are left"]

    def configured(self) -> list[str]:
        """Return the paths of the records of claims of the present configuration."""
        return [path for path, content in self._records().items() if self._world.settings.serves(*_place(content))]

    def _of_claim(self, records: dict[str, Any]) -> list[str]:
        """Return the paths of the records of the claim for which the present configuration is: one of each driver."""
        return [path for path, content in records.items() if content["claim"]["uid"] == self._claim]

    def _records(self) -> dict[str, Any]:
        """Return the content of each record of a claim that is not damaged, by path."""
        files = self._world.host.files
        found = {path: files.lookup(path).data for path in self._world.claims.records()}
        return {path: json.loads(data) for path, data in found.items() if data}


def _place(content: dict[str, Any]) -> tuple[str, str]:
    """Return driver and a device of a record."""
    return content["claim"]["driver"], content["places"][0]
