"""The table of reasons: each has a row, and the order lets the reason that wins decide who may use the device."""

from aosp_plugin.binder.devices.health import REASONS, Reason


def test_each_reason_has_a_row_in_the_order_of_the_enum() -> None:
    assert [*REASONS] == [*Reason]


def test_reasons_that_close_a_device_to_all_pods_take_precedence() -> None:
    """Otherwise a missing device that is surplus as well would be open to the pod that has it."""
    opened = [REASONS[reason].open_to_owner for reason in Reason]
    assert opened == sorted(opened)
