"""Measure what idle devices cost a broker.

    python benchmarks/idle_connections.py 300 1000

Each device connects over TLS with its own certificate, subscribes as a real device does, and pings as MQTT requires
(every 20 s). The broker is a separate process whose CPU seconds and memory are reported; all clients share one thread
here.
"""

import argparse
import asyncio
import os
import ssl
import sys
import tempfile
import time
from pathlib import Path

from perfeds2.deployment.credentials import Credentials, make_credentials
from perfeds2.deployment.mqtt.broker import Broker, Kind, running_broker
from perfeds2.deployment.mqtt.embedded import Type, packet

KEEP_ALIVE_S = 20
AT_ONCE = 20  # concurrent connection attempts


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


async def connect(
    credentials: Credentials, broker: Broker, device: int, few: asyncio.Semaphore
) -> asyncio.StreamWriter:
    """Connect and subscribe as a device."""
    context = ssl.create_default_context(cafile=str(credentials.authority))
    context.load_cert_chain(credentials.file(device, "crt"), credentials.file(device, "key"))
    async with few:
        reader, writer = await asyncio.open_connection(broker.host, broker.port, ssl=context)
        writer.write(packet(Type.CONNECT, text("MQTT") + bytes([4, 2, 0, KEEP_ALIVE_S]) + text("x")))
        assert (await reader.readexactly(4))[3] == 0
        filters = ("perfeds2/run", f"perfeds2/job/device-{device}")
        writer.write(packet(Type.SUBSCRIBE, b"\0\1" + b"".join(text(each) + b"\1" for each in filters), 2))
        await reader.readexactly(6)
    return writer


async def measure(credentials: Credentials, broker: Broker, devices: int, seconds: float) -> str:
    began_s, few = time.monotonic(), asyncio.Semaphore(AT_ONCE)
    cpu_s, memory_mb = cost(broker.process_id)
    writers = await asyncio.gather(*(connect(credentials, broker, device, few) for device in range(devices)))
    connected_s, (connected_cpu_s, connected_mb) = time.monotonic() - began_s, cost(broker.process_id)
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds:
        for writer in writers:  # spread evenly over time
            writer.write(packet(Type.PINGREQ))
            await asyncio.sleep(KEEP_ALIVE_S / devices)
            if time.monotonic() - began_s >= seconds:
                break
    idle_s, (idle_cpu_s, idle_mb) = time.monotonic() - began_s, cost(broker.process_id)
    for writer in writers:
        writer.close()
    return (
        f"{broker.kind}, {devices} devices: connected in {connected_s:.1f} s with {connected_cpu_s - cpu_s:.2f} s of CPU; "
        f"idle {100 * (idle_cpu_s - connected_cpu_s) / idle_s:.2f} % of a core; "
        f"{idle_mb:.0f} MB, {1024 * (connected_mb - memory_mb) / devices:.0f} kB a connection"
    )


def cost(process: int) -> tuple[float, float]:
    """Return a process's CPU seconds so far and its memory in MB."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    memory = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(memory.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", type=int, nargs="*", default=[300, 1000])
    parser.add_argument("--seconds", type=float, default=40.0, help="how long they stay")
    parser.add_argument("--kind", choices=["mosquitto", "embedded"], default="mosquitto")
    given = parser.parse_args()
    kind: Kind = given.kind
    with tempfile.TemporaryDirectory() as folder:
        credentials = make_credentials(Path(folder) / "credentials", max(given.devices))
        for devices in given.devices:
            with running_broker(credentials, ("127.0.0.1", 0), Path(folder) / "broker", kind) as broker:
                print(asyncio.run(measure(credentials, broker, devices, given.seconds)), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
