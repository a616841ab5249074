"""Reference values of TR 38.901 from an outside implementation, Sionna 2.2. Made, with ``pip install sionna-no-rt``, by

    python tests/network/reference_radios.py > tests/network/reference_radios.csv

Each row: scenario, carrier (Hz), heights of base station and UE (m), distance on the ground (m), path loss with and without line
of sight (dB), probability of line of sight, σ of the shadowing with and without it (dB), and over which distances it is alike (m).
"""

DISTANCES_M = (12, 18, 25, 40, 60, 90, 150, 200, 350, 700, 1500, 4000)
CASES = (
    *(("umi", carrier_hz, 10.0, ue_m) for carrier_hz in (2e9, 3.5e9, 28e9) for ue_m in (1.5, 4.5)),
    *(("uma", carrier_hz, 25.0, ue_m) for carrier_hz in (2e9, 3.5e9, 28e9) for ue_m in (1.5, 4.5)),
    *(("rma", carrier_hz, bs_m, 1.5) for carrier_hz in (7e8, 3.5e9) for bs_m in (35.0, 20.0)),
)


def main() -> None:
    import torch  # pyright: ignore[reportMissingImports]  # not among our tools
    from sionna.phy.channel.tr38901 import PanelArray, RMa, UMa, UMi  # pyright: ignore[reportMissingImports]

    print(
        "scenario,carrier_hz,bs_m,ue_m,ground_m,seen_db,blocked_db,chance,shadow_db,blocked_shadow_db,alike_m,blocked_alike_m"
    )
    for name, carrier_hz, bs_m, ue_m in CASES:
        array = PanelArray(
            num_rows_per_panel=1,
            num_cols_per_panel=1,
            polarization="single",
            polarization_type="V",
            antenna_pattern="omni",
            carrier_frequency=carrier_hz,
        )
        kind = {"umi": UMi, "uma": UMa, "rma": RMa}[name]
        more = {} if name == "rma" else {"o2i_model": "low"}
        channel = kind(carrier_frequency=carrier_hz, ut_array=array, bs_array=array, direction="uplink", **more)
        n = len(DISTANCES_M)
        ut = torch.tensor([[[float(d), 0.0, ue_m] for d in DISTANCES_M]])
        bs, still = torch.tensor([[[0.0, 0.0, bs_m]]]), torch.zeros(1, n, 3)
        found = {}
        for seen in (True, False):
            channel.set_topology(
                ut, bs, still, torch.zeros(1, 1, 3), still, torch.zeros(1, n, dtype=torch.bool), los=seen
            )
            scenario = channel._scenario
            found[seen] = [
                scenario.basic_pathloss.flatten().tolist(),
                (10 * scenario.lsp_log_std[..., 3]).flatten().tolist(),
                [float(scenario.get_param("corrDistSF").flatten()[0])] * n,
            ]
            chance = scenario.los_probability.flatten().tolist()
        for i, d in enumerate(DISTANCES_M):
            (a, s, c), (b, t, e) = ([column[i] for column in found[seen]] for seen in (True, False))
            print(
                f"{name},{carrier_hz:g},{bs_m},{ue_m},{d},{a:.4f},{b:.4f},{chance[i]:.6f},{s:.3f},{t:.3f},{c:g},{e:g}"
            )


if __name__ == "__main__":
    main()
