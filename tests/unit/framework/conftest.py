"""Fixtures of the tests of the framework."""

import asyncio

import pytest


@pytest.fixture
async def loop_errors() -> list[object]:
    """Return a list to which the event loop adds errors that are not retrieved."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    return errors
