"""SNRs at which schemes of TS 38.214 lose 10 % of their blocks, from an outside implementation, Sionna 2.2.

Made, with ``pip install sionna-no-rt``, by

    python tests/network/reference_cqi.py > tests/network/reference_cqi.csv

They are read from Sionna's own tables of block errors: NR's LDPC code over white noise, code blocks of 2,000 bits. Where
two tables have a scheme, we take the mean. The tables begin at -5 dB. Each row: bits per symbol, code rate times 1024, SNR (dB).
"""

import json
import math
from pathlib import Path

SCHEMES = {  # of TS 38.214: bits per symbol and code rate of each MCS
    1: [(2, rate) for rate in (120, 157, 193, 251, 308, 379, 449, 526, 602, 679)]
    + [(4, rate) for rate in (340, 378, 434, 490, 553, 616, 658)]
    + [(6, rate) for rate in (438, 466, 517, 567, 616, 666, 719, 772, 822, 873, 910, 948)],
    2: [(2, rate) for rate in (120, 193, 308, 449, 602)]
    + [(4, rate) for rate in (378, 434, 490, 553, 616, 658)]
    + [(6, rate) for rate in (466, 517, 567, 616, 666, 719, 772, 822, 873)]
    + [(8, rate) for rate in (682.5, 711, 754, 797, 841, 885, 916.5, 948)],
}
BITS, TARGET = "2000", 0.1


def main() -> None:
    import sionna.sys  # pyright: ignore[reportMissingImports]  # not among our tools

    found: dict[tuple[int, float], list[float]] = {}
    for table, schemes in SCHEMES.items():
        text = (Path(sionna.sys.__file__).parent / "bler_tables" / f"PDSCH_table{table}.json").read_text()
        for number, measured in json.loads(text)["category"]["1"]["index"][str(table)]["MCS"].items():
            errors, snr_db = measured["CBS"].get(BITS, {}).get("BLER", [0.0]), measured["SNR_db"]
            past = next((i for i, error in enumerate(errors) if error <= TARGET), 0)
            if past:  # interpolate between the logarithms of the error rates
                high, low = math.log10(errors[past - 1]), math.log10(max(errors[past], 1e-4))
                part = (high - math.log10(TARGET)) / (high - low)
                at_db = snr_db[past - 1] + part * (snr_db[past] - snr_db[past - 1])
                found.setdefault(schemes[int(number)], []).append(at_db)
    print("bits_per_symbol,rate_1024,snr_db")
    for (order, rate), snrs_db in sorted(found.items()):
        print(f"{order},{rate},{sum(snrs_db) / len(snrs_db):.2f}")


if __name__ == "__main__":
    main()
