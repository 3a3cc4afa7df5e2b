"""A certificate authority and a server certificate for the stand-in API server, made with openssl."""

from __future__ import annotations

import os
import ssl
import subprocess
from typing import NamedTuple

_NAMES = "subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1"
_NEW = ("openssl", "req", "-x509", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")


class Certificates(NamedTuple):
    """Files in PEM."""

    authority: str
    """The certificate of the authority, which clients trust."""
    certificate: str
    key: str

    def context(self) -> ssl.SSLContext:
        """Return the context of a server."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


def create(directory: str) -> Certificates:
    """Create an authority and a certificate for localhost in a directory, replacing those that are there.

    Blocks for some 50 ms. Raises OSError without openssl, and CalledProcessError if it fails.
    """
    made = Certificates(*(os.path.join(directory, name) for name in ("ca.crt", "server.crt", "server.key")))
    authority_key = os.path.join(directory, "ca.key")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _run(*_NEW, "-subj", "/CN=stand-in-ca", *usage, "-out", made.authority, "-keyout", authority_key)
    signed = ("-CA", made.authority, "-CAkey", authority_key, "-addext", "basicConstraints=critical,CA:FALSE")
    _run(
        *_NEW, "-subj", "/CN=kube-apiserver", *signed, "-addext", _NAMES, "-out", made.certificate, "-keyout", made.key
    )
    return made


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - openssl with our arguments
