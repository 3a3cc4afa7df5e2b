"""The latest records of the log: which are kept, how much of them, and what the report has of them."""

import logging
from collections.abc import Iterator

import msgspec
import pytest

from aosp_plugin.framework.service.logs import working_for
from aosp_plugin.report.document import LogRecord
from aosp_plugin.report.observation import MAX_LENGTH, MAX_RECORDS, RecentLog
from tests.support import RESOURCE

LOG = logging.getLogger("aosp_plugin.test")


@pytest.fixture
def recent() -> Iterator[RecentLog]:
    """Yield what keeps the records of the logger of this test."""
    recent = RecentLog()
    LOG.addHandler(recent)
    LOG.setLevel(logging.DEBUG)
    yield recent
    LOG.removeHandler(recent)


def test_a_record_has_its_resource_and_its_fields_as_text(recent: RecentLog) -> None:
    LOG.debug("not kept")
    with working_for(RESOURCE):
        LOG.warning("request %s", "refused", extra={"code": 5, "error": "x" * 2 * MAX_LENGTH})
    (record,) = recent.records
    fields = {"code": "5", "error": "x" * MAX_LENGTH}
    assert record == LogRecord(record.time, "warning", "request refused", RESOURCE, fields)


def test_the_newest_records_are_kept_and_come_first(recent: RecentLog) -> None:
    for number in range(2 * MAX_RECORDS):
        LOG.info("%d", number)
    messages = [record.message for record in recent.records]
    assert messages == [str(number) for number in reversed(range(MAX_RECORDS, 2 * MAX_RECORDS))]


def test_a_record_that_cannot_be_formatted_does_not_fail_who_logs_it(
    recent: RecentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a library, perhaps."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    LOG.info("%d", "one")
    assert recent.records == ()


def test_a_record_with_the_name_of_any_file_is_in_the_report(recent: RecentLog) -> None:
    """Names of files are bytes; otherwise there would be no report until a hundred other records have come."""
    # Not by the logger: pytest cannot pass what it captures from one process to another if it is not UTF-8.
    extra = {"path": "/dev/\udcff"}
    recent.handle(LOG.makeRecord(LOG.name, logging.WARNING, __file__, 1, "cannot read \udcff", (), None, extra=extra))
    decoded = msgspec.json.decode(msgspec.json.encode(recent.records[0]), type=LogRecord)
    assert (decoded.message, decoded.fields) == ("cannot read \\udcff", {"path": "/dev/\\udcff"})
