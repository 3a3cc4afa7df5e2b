"""A pod's credentials: token and CA from files that change while the process runs, over TLS."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.credentials import ServiceAccount, ServiceAccountMissingError, in_cluster
from aosp_plugin.framework.apiserver.protocol import ApiError, ApiUnavailableError
from aosp_plugin.framework.conditions import Conditions
from kubelet_standin.apiserver import ApiServer

pytestmark = pytest.mark.api_server(tls=True)


@pytest.fixture
async def client(api_server: ApiServer, tmp_path: Path) -> AsyncIterator[ApiClient]:
    api_server.write_service_account(str(tmp_path), "first")
    account = in_cluster(str(tmp_path), api_server.environment, conditions=Conditions())
    async with contextlib.aclosing(ApiClient(account)) as client:
        yield client


async def test_a_token_and_certificates_that_were_replaced_are_used(
    api_server: ApiServer, client: ApiClient, tmp_path: Path
) -> None:
    """The error is one to try again after."""
    await client.list(protocol.NODES)
    api_server.access.expire("first")
    with pytest.raises(ApiError, match="401 Unauthorized") as info:
        await client.list(protocol.NODES)
    assert info.value.transient
    api_server.write_service_account(str(tmp_path), "second")
    await client.list(protocol.NODES)
    await api_server.replace_certificates()
    await api_server.restart()
    with pytest.raises(ApiUnavailableError, match=r"cannot connect: .*certificate verify failed"):
        await client.list(protocol.NODES)
    api_server.write_service_account(str(tmp_path), "second")
    await client.list(protocol.NODES)


async def test_a_server_with_the_certificate_of_another_name_is_not_trusted(tmp_path: Path) -> None:
    async with ApiServer(tls=True, host="127.0.0.2") as server:
        server.write_service_account(str(tmp_path))
        account = ServiceAccount(server.url, str(tmp_path), conditions=Conditions())
        async with contextlib.aclosing(ApiClient(account)) as client:
            with pytest.raises(ApiUnavailableError, match=r"cannot connect: .*IP address mismatch"):
                await client.list(protocol.NODES)


async def test_files_are_read_in_a_thread(client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop serves the kubelet meanwhile."""
    readers = []
    monkeypatch.setattr(ServiceAccount, "_read", lambda _: readers.append(threading.current_thread()))
    results = await asyncio.gather(*[client.list(protocol.NODES) for _ in range(3)], return_exceptions=True)
    assert all(isinstance(result, ApiUnavailableError) for result in results)
    assert threading.main_thread() not in readers


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("token", "", "/token has no token"),
        ("token", "a b", "/token has no token"),
        ("token", "a\nHost: b", "/token has no token"),
        ("token", "\N{LATIN SMALL LETTER A WITH DIAERESIS}", "/token has no token"),
        ("ca.crt", "", "/ca.crt is not a file of certificates in PEM"),
        (
            "ca.crt",
            "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n",
            "is not a file of certificates",
        ),
    ],
    ids=["empty", "space", "line", "letter", "no certificate", "bad certificate"],
)
async def test_an_invalid_file_is_named(
    client: ApiClient, tmp_path: Path, name: str, content: str, problem: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ApiUnavailableError, match=problem):
        await client.list(protocol.NODES)


async def test_files_that_vanish_leave_the_credentials_in_use(
    client: ApiClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await client.list(protocol.NODES)
    (tmp_path / "token").rename(tmp_path / "away")
    for _ in range(3):
        await client.list(protocol.NODES)
    (tmp_path / "away").rename(tmp_path / "token")
    await client.list(protocol.NODES)
    assert [record.message for record in caplog.records if "credentials" in record.message] == [
        "credentials of the API server are unavailable",
        "credentials of the API server recovered",
    ]


@pytest.mark.parametrize("environment", [{}, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}])
def test_an_environment_without_the_api_server_is_an_error(environment: dict[str, str]) -> None:
    problem = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set"
    with pytest.raises(ServiceAccountMissingError, match=problem):
        in_cluster("/none", environment, conditions=Conditions())
