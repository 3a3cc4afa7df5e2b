"""What a request has used is free as soon as it has ended: no reference cycle keeps it until the next collection."""

import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator

import grpc

from tests.support import until


def kept() -> Counter[str]:
    """Count the objects of the types of which a request that has ended leaves none, in the whole process.

    They are errors, but not those of the client, and gRPC's contexts, which handlers refer to as to their requests.
    """
    return Counter(
        type(each).__name__
        for each in gc.get_objects()
        if type(each).__name__ == "_ServicerContext"
        or (isinstance(each, BaseException) and not isinstance(each, grpc.RpcError))
    )


@contextlib.asynccontextmanager
async def nothing_kept() -> AsyncIterator[None]:
    """Check that what runs inside the context leaves nothing, although nothing is collected meanwhile."""
    gc.collect()
    gc.disable()
    before = kept()
    assert before["_ServicerContext"], "that of a stream of the kubelet"
    try:
        yield
        with contextlib.suppress(TimeoutError):
            await until(lambda: kept() <= before)
        assert not kept() - before
    finally:
        gc.enable()
