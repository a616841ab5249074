"""Values of the sector antenna and of outer walls of TR 38.901 from an outside implementation, Sionna 2.2.

Made, with ``pip install sionna-no-rt``, by

    python tests/network/reference_antennas.py > tests/network/reference_antennas.csv

Each row: an antenna's azimuth off its axis and angle below the horizon (degrees) with its gain (dBi), or a carrier (Hz)
and the loss of low-loss and high-loss walls (dB) of version 16 of the report, without the way behind them.
"""

import math
from types import SimpleNamespace


def main() -> None:
    import torch  # pyright: ignore[reportMissingImports]  # not among our tools
    from sionna.phy.channel.tr38901.antenna import (  # pyright: ignore[reportMissingImports]
        _radiation_pattern_38901_table as pattern,
    )
    from sionna.phy.channel.tr38901.lsp import LSPGenerator  # pyright: ignore[reportMissingImports]

    print("kind,first,second,value")
    for aside in range(-180, 180, 18):
        for below in (-30, -10, 0, 5, 15, 30, 60, 85):
            theta = torch.tensor(math.radians(90 + below), dtype=torch.float64)
            phi = torch.tensor(math.radians(aside), dtype=torch.float64)
            gain = pattern(theta, phi, 65.0, 65.0, 30.0, 30.0, 8.0)
            print(f"antenna,{aside},{below},{10 * math.log10(float(gain)):.6f}")
    for number in range(20):
        carrier_hz = 0.7e9 * 1.25**number
        scenario = SimpleNamespace(
            carrier_frequency=torch.tensor(carrier_hz, dtype=torch.float64),
            batch_size=1,
            num_ut=1,
            indoor=torch.tensor([[True]]),
            distance_2d_in=torch.zeros(1, 1, 1, dtype=torch.float64),
            spec_version="16.1",
        )
        maker = SimpleNamespace(
            _scenario=scenario,
            _use_legacy_o2i_model=False,
            dtype=torch.float64,
            device="cpu",
            _sample_o2i_penetration_random=lambda _: torch.zeros(1, 1, 1, dtype=torch.float64),
        )
        for name, loss in (("low", LSPGenerator._o2i_low_loss), ("high", LSPGenerator._o2i_high_loss)):
            print(f"{name},{carrier_hz:.6f},0,{float(loss(maker)):.6f}")


if __name__ == "__main__":
    main()
