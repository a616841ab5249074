"""Why does a broker not let this device in? TLS has a word for each reason; here they are sentences."""

import socket
import ssl
from pathlib import Path

from perfeds2.deployment.credentials import Credentials, device_name

ANSWERS_WITHIN_S = 5.0
SAID = {  # by OpenSSL's name for what the other side said
    "CERTIFICATE_REVOKED": "{name} was revoked; ask for new credentials (perfeds2 federate rotate)",
    "UNKNOWN_CA": "{name}'s certificate is from another authority than the broker's; copy it again from where perfeds2 federate credentials was run",
    "CERTIFICATE_EXPIRED": "{name}'s certificate has run out; ask for new credentials (perfeds2 federate rotate)",
    "CERTIFICATE_REQUIRED": "the broker wants a certificate and {name} showed none",
    "BAD_CERTIFICATE": "{name}'s certificate is damaged; copy it again",
}


def why_refused(credentials: Credentials, address: tuple[str, int], device: int | None = None) -> str | None:
    """One sentence, or None where the broker lets this device (None: the server) in, as far as TLS goes."""
    name = "server" if device is None else device_name(device)
    files = credentials.own_files(device)
    where = f"{address[0]}:{address[1]}"
    for path in (credentials.authority, *files):
        if not path.exists():
            return f"{path} does not exist; copy it from where perfeds2 federate credentials was run"
    try:
        _shake_hands(credentials.authority, files, address)
    except ssl.SSLCertVerificationError as error:
        return f"the broker at {where} is not who it should be ({error.verify_message}); is {credentials.authority} of this federation?"
    except ssl.SSLError as error:
        said = next((text for word, text in SAID.items() if word in (error.reason or "")), None)
        return said.format(name=name) if said else f"TLS with {where} failed ({error.reason or error})"
    except OSError as error:
        return f"nobody answers at {where} ({error.strerror or error}); does the broker run there?"
    return None


def _shake_hands(authority: Path, files: tuple[Path, Path], address: tuple[str, int]) -> None:
    """With TLS 1.3 a client learns that it was refused only when it listens after the handshake."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        context.load_cert_chain(*files)
    except ssl.SSLError as error:
        error.reason = "BAD_CERTIFICATE"
        raise
    with (
        socket.create_connection(address, timeout=ANSWERS_WITHIN_S) as connection,
        context.wrap_socket(connection, server_hostname=address[0]) as secure,
    ):
        secure.settimeout(0.5)  # who lets us in waits for us to speak
        try:
            secure.recv(1)
        except TimeoutError:
            return
