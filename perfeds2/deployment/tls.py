"""The one kind of TLS context: 1.2 or later, certificates on both sides, and none that is revoked."""

import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from perfeds2.errors import InputError


def tls_context(
    side: int, trust: Iterable[str | Path], own: tuple[str | Path, str | Path] | None, *, strangers: bool = False
) -> ssl.SSLContext:
    """Return a context with the files as they are now.

    Args:
        side: ``ssl.PROTOCOL_TLS_CLIENT`` or ``ssl.PROTOCOL_TLS_SERVER``.
        trust: Authorities of the other side, and their revocation lists.
        own: Our certificate and key; None for a client that has none yet.
        strangers: Whether a server also accepts clients without a certificate.

    Raises:
        OSError: A file is missing or unusable.
    """
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.verify_mode = ssl.CERT_OPTIONAL if strangers else ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_TICKET  # no resumption: every connection shows a certificate
        context.num_tickets = 0
    for path in trust:
        context.load_verify_locations(path)
    if own is not None:
        context.load_cert_chain(*own)
    return context


class NewestContext(ssl.SSLContext):
    """A client's context that is made anew for every connection, since keys and lists are replaced meanwhile."""

    make: Callable[[], ssl.SSLContext]

    def __new__(cls, make: Callable[[], ssl.SSLContext]) -> "NewestContext":
        context = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        context.make = make
        return context

    def wrap_socket(self, *args: Any, **more: Any) -> ssl.SSLSocket:
        try:
            return self.make().wrap_socket(*args, **more)
        except InputError as error:  # a file is being replaced
            raise ConnectionError(str(error)) from None
