"""The smallest possible plugin in Python: grpcio with its defaults, and an Allocate with an empty answer.

It lists the directory once, at the start. Its figures are those of grpcio and protobuf and so the lower bound for
plugins that use them. It loads the API's messages by the path of their module, because an import would also load parts
of this project.

    python -m tests.bench.empty asyncio|threads DEVICES KUBELET
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


def messages() -> Any:
    """Return the module of the API's messages."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.path.join(root, "aosp_plugin/framework/api/deviceplugin_pb2.py")
    spec = importlib.util.spec_from_file_location("deviceplugin_pb2", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pb = messages()


NAME, ENDPOINT = "bench.example/empty", "empty.sock"
ANSWER: bytes = pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse()]).SerializeToString()


def handlers(list_and_watch: Callable[..., Any], allocate: Callable[..., Any]) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the server's handlers for the two RPCs."""
    return grpc.method_handlers_generic_handler(
        "v1beta1.DevicePlugin",
        {
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch),
            "Allocate": grpc.unary_unary_rpc_method_handler(allocate),
        },
    )


def devices(directory: str) -> bytes:
    """Return the message that lists the files in ``directory``."""
    listed = [pb.Device(ID=name, health="Healthy") for name in os.listdir(directory)]
    return bytes(pb.ListAndWatchResponse(devices=listed).SerializeToString())


def register(kubelet: str) -> None:
    """Register with the kubelet."""
    request = pb.RegisterRequest(version="v1beta1", endpoint=ENDPOINT, resource_name=NAME)
    with grpc.insecure_channel(f"unix:{kubelet}/kubelet.sock", [("grpc.default_authority", "localhost")]) as channel:
        channel.unary_unary("/v1beta1.Registration/Register", None, None)(
            request.SerializeToString(), wait_for_ready=True
        )


async def with_asyncio(directory: str, kubelet: str) -> None:
    """Serve in an event loop until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def list_and_watch(_request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield devices(directory)
        await stop.wait()

    async def allocate(_request: bytes, _context: object) -> bytes:
        return ANSWER

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(list_and_watch, allocate),))
    server.add_insecure_port(f"unix:{kubelet}/{ENDPOINT}")
    await server.start()
    await asyncio.to_thread(register, kubelet)
    await stop.wait()
    await server.stop(0)


def with_threads(directory: str, kubelet: str) -> None:
    """Serve in threads until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def list_and_watch(_request: bytes, _context: object) -> Iterator[bytes]:
        yield devices(directory)
        stop.wait()

    def allocate(_request: bytes, _context: object) -> bytes:
        return ANSWER

    server = grpc.server(ThreadPoolExecutor(10))
    server.add_generic_rpc_handlers((handlers(list_and_watch, allocate),))
    server.add_insecure_port(f"unix:{kubelet}/{ENDPOINT}")
    server.start()
    register(kubelet)
    stop.wait()
    server.stop(0).wait()


if __name__ == "__main__":
    if sys.argv[1] == "asyncio":
        asyncio.run(with_asyncio(*sys.argv[2:]))
    else:
        with_threads(*sys.argv[2:])
