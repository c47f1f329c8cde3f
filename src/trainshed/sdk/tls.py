"""Whom a client believes that it speaks to over https: whom this machine believes, or ``SSL_CERT_FILE``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainshed.sdk.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

_NAMED = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Where OpenSSL's programs are told of authorities."""


def verifier(url: str) -> ssl.SSLContext | bool:
    """What proves the certificate of a server; true leaves it to the library, which asks the system."""
    import ssl  # noqa: PLC0415 - streams and other machines only

    if not url.startswith("https:"):
        # Reading the certificate store costs 20 ms; this context trusts no one, and http does not ask it.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context() if any(os.environ.get(name) for name in _NAMED) else True


def refuse_untrusted(url: str, error: BaseException) -> None:
    """Raise `ConfigurationError` if a call failed over a certificate: trying again does not help."""
    import ssl  # noqa: PLC0415 - as above

    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            raise ConfigurationError(
                f"the certificate of {url} is not trusted here: {found.verify_message}",
                hint="If your team has an authority of its own, name its certificate: "
                "`export SSL_CERT_FILE=/path/to/ca.pem`.",
            ) from error
        found = found.__cause__ or found.__context__
