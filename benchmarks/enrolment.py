"""How long do enrolment and renewal of many devices take?

    python -m benchmarks.enrolment --devices 200

Tokens are made by one command, and every device enrols and renews over TLS, each with a folder of its own. All run on
this machine, eight at a time.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perfeds2.deployment.authority import read_privates
from perfeds2.deployment.credentials import Credentials, make_credentials
from perfeds2.deployment.enrolment import enrol, enrolling, make_tokens, renew

AT_ONCE = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(measure(Path(folder), given.devices), file=sys.stdout, flush=True)


def measure(folder: Path, devices: int) -> str:
    made = make_credentials(folder / "credentials", 0)
    held = [Credentials(folder / f"device-{number}") for number in range(devices)]
    tokens = list[str]()
    with enrolling(made, ("127.0.0.1", 0)) as port, contextlib.redirect_stderr(io.StringIO()):
        tokens_s = timed(lambda number: tokens.extend(make_tokens(made, [number], 1.0)), range(devices), 1)
        enrol_s = timed(lambda number: enrol(held[number], ("127.0.0.1", port), tokens[number]), range(devices))
        for number in range(devices):
            let_age(made, held[number], number)
        renew_s = timed(lambda number: renew(held[number], number), range(devices))
    renewed = sum(len(made.serials(number)) == 2 for number in range(devices))
    assert (len(made.devices()), renewed) == (devices, devices)
    return f"{devices} devices: tokens {tokens_s:.2f} s, enrolment {enrol_s:.2f} s, renewal {renew_s:.2f} s"


def let_age(made: Credentials, device: Credentials, number: int) -> None:
    """Replace a certificate by one with ten days left."""
    made.file(number, "crt").unlink()
    public = read_privates(device.file(number, "key"))[0].public_key()
    device.file(number, "crt").write_bytes(made.certify(number, public, days=10))


def timed(action: Callable[[int], object], numbers: Iterable[int], at_once: int = AT_ONCE) -> float:
    started_s = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(action, numbers))
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
