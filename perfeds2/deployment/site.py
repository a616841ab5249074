"""Where a federation's network is, and why it refuses someone."""

import contextlib
import socket
import ssl
import time
from dataclasses import dataclass

from perfeds2.deployment.credentials import Credentials, name_of
from perfeds2.errors import InputError

ANSWERS_WITHIN_S = 5.0
REFUSALS = {  # by OpenSSL's name of the broker's alert
    "CERTIFICATE_REVOKED": "{name} was revoked; ask for new credentials (perfeds2 federate rotate)",
    "UNKNOWN_CA": "{name}'s certificate is from another authority than the broker's; copy it again from where perfeds2 federate credentials was run",
    "CERTIFICATE_EXPIRED": "{name}'s certificate has expired by the broker's clock; ask for new credentials (perfeds2 federate rotate)",
    "CERTIFICATE_REQUIRED": "the broker requires a certificate, but {name} sent none",
    "BAD_CERTIFICATE": "{name}'s certificate is damaged, or not valid yet by the broker's clock; copy it again, or set that clock",
}
CLOCK_ERRORS = (9, 10, 11, 12)  # OpenSSL's codes: a certificate or a list is not valid yet, or has expired


@dataclass(frozen=True)
class Site:
    """The broker's address and this machine's credentials."""

    host: str
    port: int
    credentials: Credentials

    @property
    def federation(self) -> str:
        return self.credentials.federation

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def read(cls, address: str, flag: str, credentials: Credentials) -> "Site":
        """Parse the address HOST:PORT that a flag gave.

        Raises:
            InputError: The address is malformed.
        """
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 2**16):
            raise InputError(f"{flag} takes HOST:PORT, got {address!r}.")
        return cls(host.strip("[]"), int(port), credentials)

    def why_refused(self, number: int | None) -> str | None:
        """Return why the broker refuses a device, or the server (None); None if TLS accepts it."""
        try:
            context = self.credentials.tls(number)
            with (
                socket.create_connection((self.host, self.port), timeout=ANSWERS_WITHIN_S) as connection,
                context.wrap_socket(connection, server_hostname=self.host) as secure,
            ):
                # TLS 1.3 reports a refusal only after the handshake; a broker that accepts says nothing.
                secure.settimeout(0.5)
                with contextlib.suppress(TimeoutError):
                    secure.recv(1)
        except InputError as error:
            return str(error)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in CLOCK_ERRORS:
                clock = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
                return f"this machine's clock says {clock}, and by that the {error.verify_message}; set the clock, or ask for new credentials if it is right"
            return f"the broker at {self.address} cannot be verified ({error.verify_message}); does {self.credentials.authority} belong to this federation?"
        except ssl.SSLError as error:
            said = next((text for word, text in REFUSALS.items() if word in (error.reason or "")), None)
            return said.format(name=name_of(number)) if said else f"TLS with {self.address} failed ({error})"
        except OSError as error:
            return f"nothing answers at {self.address} ({error.strerror or error}); is the broker running there?"
        return None
