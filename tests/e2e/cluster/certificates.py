"""The cluster's certificates and kubeconfigs, made with openssl."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.e2e.common.processes import run

_DAYS = "365"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")


class Certificate(NamedTuple):
    """The files of a certificate and its private key, in PEM."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority, whose files are in one directory."""

    def __init__(self, directory: Path) -> None:
        """Create the authority, and a key pair that signs the tokens of service accounts."""
        directory.mkdir(parents=True)
        self._directory = directory
        self.root = self._certificate("ca", "/CN=kubernetes-ca", ("-addext", "keyUsage=critical,keyCertSign,cRLSign"))
        self.service_accounts = self._certificate("service-accounts", "/CN=service-accounts", ())

    def issue(
        self,
        name: str,
        user: str,
        *,
        groups: Sequence[str] = (),
        addresses: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> Certificate:
        """Issue a certificate for client and server: ``user`` and ``groups`` are what the API server reads from it."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        alternatives = [*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)]
        extensions = ["-addext", "extendedKeyUsage=clientAuth,serverAuth"]
        if alternatives:
            extensions += ["-addext", f"subjectAltName={','.join(alternatives)}"]
        signed = ("-CA", str(self.root.certificate), "-CAkey", str(self.root.key))
        return self._certificate(name, subject, (*signed, "-addext", "basicConstraints=critical,CA:FALSE", *extensions))

    def kubeconfig(self, name: str, server: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Issue a client's certificate, and write a kubeconfig that names it. ``server`` is the API server's URL."""
        client = self.issue(name, user, groups=groups)
        cluster = {"server": server, "certificate-authority": str(self.root.certificate)}
        credentials = {"client-certificate": str(client.certificate), "client-key": str(client.key)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": name, "user": credentials}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": name}}],
            "current-context": "cluster",
        }
        path = self._directory / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def _certificate(self, name: str, subject: str, more: Sequence[str]) -> Certificate:
        made = Certificate(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        out = ("-out", str(made.certificate), "-keyout", str(made.key))
        run("openssl", "req", "-x509", "-days", _DAYS, "-subj", subject, *_KEY, *out, *more)
        return made
