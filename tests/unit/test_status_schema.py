"""docs/status.schema.json is valid for what is printed."""

import json

import jsonschema
import msgspec
import pytest

from aosp_plugin.framework.conditions import Severity
from aosp_plugin.report.document import DriverReport, Known, LogRecord, Problem, Report, State
from hack import docs
from tests.unit.cli.test_status import EMPTY, PHONE_9, device


def report() -> Report:
    """Return a report with a value of each type."""
    devices = (device("n1", State.UNHEALTHY, PHONE_9, reason="missing"),)
    driver = DriverReport("phone.aosp.io", 2, 1, 0)
    resource = msgspec.structs.replace(EMPTY, devices=devices, driver=driver)
    problem = Problem(Severity.ERROR, "missing", "aosp.io/binder", "a", "b", "missing", None, 1, ("n1",), ("a/b",), 0)
    record = LogRecord(1.5, "info", "devices changed", "aosp.io/binder", {"changed": "n1:missing"})
    return Report("1", "node", 1.0, Known(known=True, problem=""), (resource,), (problem,), (record,), "")


def test_every_field_that_has_a_docstring_has_a_description() -> None:
    definitions = json.loads(docs.STATUS.read_text(encoding="utf-8"))["$defs"]
    assert definitions["Counts"]["properties"]["gone"]["description"].startswith("Devices that pods have")
    assert definitions["ResourceReport"]["required"] == list(definitions["ResourceReport"]["properties"])


def test_report_is_valid_and_a_wrong_one_is_not() -> None:
    schema = json.loads(docs.STATUS.read_text(encoding="utf-8"))
    document = json.loads(msgspec.json.encode(report()))
    jsonschema.validate(document, schema)
    for name, value in (("resources", [{}]), ("started", "today"), ("log", [{"level": 3}])):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document | {name: value}, schema)
