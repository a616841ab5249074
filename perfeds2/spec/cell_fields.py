"""Define the settings of the cell: UEs, several cells, radio and energy. Together with the rounds they decide the timeline."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from perfeds2.spec.names import Named
from perfeds2.spec.values import (
    CELL,
    COMPRESSION,
    MOBILITY,
    RADIO,
    SITES,
    WRITTEN,
    Bits,
    Count,
    Decibels,
    ErrorsName,
    FadingName,
    Large,
    List,
    Metres,
    NotNegative,
    OutageName,
    Population,
    Positive,
    ProfileText,
    Seconds,
    Section,
    Steps,
    Usual,
    read_sites,
    read_whole,
    setting,
    within,
)


class CellSpec(Section, title="Cell"):
    """The cell. Defaults are the paper's Table I."""

    kind: Annotated[Named, CELL] | None = setting(
        "NAME", "The cell; also FILE.csv with a row per device.", flag="cell", shown="paper"
    )
    ues: Population = setting("N", "Number of UEs.", 20)
    layout: Literal["disc", "uniform", "equal"] = setting(
        "RULE", "UE positions: over the disc, uniform in distance, or equally far.", "disc"
    )
    radius_m: Usual = setting("M", "Radius of the cell.", 200.0)
    distance_m: Annotated[tuple[Metres, ...], List] | None = setting("M,M", "A distance per UE, instead of a layout.")
    bandwidth_hz: Large = setting("HZ", "Uplink bandwidth of all UEs.", 1e6)
    power_w: Usual = setting("W", "Transmit power of a UE.", 0.01)
    path_loss_exponent: Annotated[Positive, within(0, 10)] = setting("KAPPA", "Path loss exponent.", 3.8)
    noise_dbm_per_hz: Decibels = setting("DBM", "Noise density.", -174.0)
    fading_scale: Usual = setting("SCALE", "Rayleigh scale of the fading coefficient.", 40.0)
    cpu_hz: Annotated[tuple[Large, Large], List] = setting(
        "HZ,HZ", "Slowest and fastest processor; log-uniform between them.", (2e8, 2e9)
    )
    cycles: Literal["counted", "per-parameter"] = setting(
        "RULE", "Cycles per sample: about 50 per multiply-add, or 100 per parameter.", "counted"
    )
    cycles_per_sample: Large | None = setting("N", "Processor cycles per sample.", shown="as --cycles counts")
    count_hessian: bool | None = setting("", "Count what a Hessian-vector product costs, not a batch more.")
    parameters: Large | None = setting(
        "N", "Parameters of a model that the clock assumes instead.", shown="the model's"
    )
    payload_bits: Large | None = setting("BITS", "Size of an upload.", shown="32 per parameter")
    downlink_s: Seconds = setting("SECONDS", "Time to send a model to a UE.", 0.0)
    trace_end: Literal["repeat", "hold"] | None = setting(
        "RULE", "At the end of a trace, repeat it or hold its rate.", shown="repeat"
    )
    on_leave: Literal["lose", "keep"] | None = setting(
        "RULE", "A UE that leaves loses its job, or keeps it.", shown="lose"
    )
    begin_s: Seconds | None = setting("SECONDS", "Second of the day at which the run begins.", shown="0: midnight")


class CellsSpec(Section, title="Cells"):
    """Several cells below a cloud. Without settings there is one cell and no cloud."""

    sites: (
        Annotated[
            Steps | Annotated[Named, SITES],
            BeforeValidator(read_sites),
            WRITTEN,
        ]
        | None
    ) = setting("N", "Number of cells on a grid, or FILE.csv of base stations.", flag="cells", shown="1")
    sectors: Annotated[Literal[1, 3], BeforeValidator(read_whole)] | None = setting(
        "1|3", "Cells of a place on the grid, each with a sector antenna.", shown="1: omnidirectional"
    )
    wrap_around: bool | None = setting("", "Repeat a grid of whole rings in all directions, without a border.")
    frequency_reuse: Annotated[Literal[1, 3], BeforeValidator(read_whole)] | None = setting(
        "1|3", "Neighbouring cells use the same band, or thirds of it.", shown="1"
    )
    interference: Annotated[NotNegative, within(0, 100)] | Literal["full", "coupled"] | None = setting(
        "DB", "Interference over thermal noise; 'full' load, or 'coupled' to uploads.", shown="none"
    )
    merge_at: Literal["edge", "cloud"] | None = setting(
        "WHERE", "Uploads are merged in every cell, or only in the cloud.", shown="edge"
    )
    edge_rounds: Count | None = setting("K", "Rounds of a cell per model sent to the cloud.", shown="1")
    cloud_quorum: Count | None = setting("A", "Models of cells that close a cloud round.", shown="all cells")
    cloud_staleness: Annotated[int, Field(ge=0, le=1_000_000)] | Literal["unbounded"] | None = setting(
        "S", "Largest staleness of a cell's model in cloud rounds.", shown="unbounded"
    )
    backhaul_bps: Large | None = setting("BPS", "Rate between a cell and the cloud.", shown="infinite")
    backhaul_s: Seconds | None = setting("SECONDS", "Delay between a cell and the cloud.", shown="0")


class RadioSpec(Section, title="Radio"):
    """The radio channel. Without settings it is the paper's Table I."""

    name: Annotated[Named, RADIO] | None = setting(
        "NAME",
        "The path loss model; umi, uma and rma are TR 38.901's.",
        flag="radio",
        shown="paper: Table I, better than any real radio",
    )
    carrier_hz: Annotated[Positive, within(5e8, 1e11)] | None = setting(
        "HZ", "Carrier frequency.", shown="3.5 GHz; rma: 0.7 GHz"
    )
    bs_height_m: Annotated[Positive, within(1.5, 150)] | None = setting(
        "M", "Height of the base station's antenna.", shown="umi: 10; uma: 25; rma: 35"
    )
    ue_height_m: Annotated[Positive, within(1.01, 13)] | None = setting("M", "Height of the UEs.", shown="1.5")
    noise_figure_db: Decibels | None = setting("DB", "Noise figure of the base station.", shown="5; paper: 0")
    indoor: Annotated[float, Field(ge=0, le=1)] | None = setting(
        "SHARE", "Share of the UEs that are indoors, drawn from the seed.", shown="0"
    )
    walls: Literal["low", "high"] | None = setting(
        "LOSS", "Loss of the walls of TR 38.901, with plain or coated windows.", shown="low"
    )
    shadowing_db: Annotated[NotNegative, within(0, 100)] | None = setting(
        "DB", "Standard deviation of the shadowing; 0 is none.", shown="TR 38.901's"
    )
    power_control: Annotated[tuple[Decibels, Annotated[float, Field(ge=0, le=1)]], List] | None = setting(
        "DBM,ALPHA", "Uplink power control: P0 per resource block and α.", shown="full power"
    )
    link: Literal["shannon", "attenuated", "cqi", "cqi-64qam"] | None = setting(
        "NAME", "What links carry: a rate law, or the CQI steps.", shown="cqi; paper: shannon"
    )
    uplink_share: Annotated[float, Field(gt=0, le=1)] | None = setting(
        "SHARE", "Share of the time for the uplink, in TDD.", shown="1: a band of its own"
    )
    efficiency_cap: Usual | None = setting(
        "BIT/S/HZ", "Largest spectral efficiency of a link.", shown="7.4, 256-QAM; paper: none"
    )
    errors: ErrorsName | None = setting(
        "RULE", "Uploads with errors: discard, repeat or harq; a margin as in harq:3.", shown="none"
    )
    outage: OutageName | None = setting(
        "RULE:BPS", "Below this rate an upload waits or is lost: wait:1e5.", shown="none"
    )
    csi_error_db: Annotated[NotNegative, within(0, 100)] | None = setting(
        "DB", "Error of the signals that policies and schedules know.", shown="0"
    )
    csi_delay: Count | None = setting("N", "Blocks of fading by which policies know signals late.", shown="0")
    band_profile: ProfileText | None = setting(
        "FILE.csv", "Share of the band that other traffic leaves over the day.", shown="1"
    )
    fading: FadingName | None = setting("LAW", "Fast fading: none, rayleigh, or rician:K.", shown="rayleigh")
    coherence_s: Annotated[Positive, within(1e-6, 1e9)] | None = setting(
        "SECONDS", "Coherence time of the fading.", shown="from the speed; without one, every round"
    )
    speed_mps: Annotated[NotNegative, within(0, 1e3)] | None = setting(
        "M/S",
        "Speed of the UEs; fading is redrawn every 0.423·c/(v·f_c). 0: every round.",
        shown="0.83, walking; paper: 0",
    )
    mobility: Annotated[Named, MOBILITY] | None = setting(
        "LAW", "Mobility model at --speed-mps, or a FILE.csv or .xml of paths.", shown="none: UEs stay in place"
    )
    bits: Bits | None = setting("N", "Bits per number of an upload: 16, 8 or 4 (QSGD).", shown="32: full precision")
    top_k: Annotated[float, Field(gt=0, le=1)] | None = setting(
        "SHARE", "Share of largest numbers to upload, with error feedback.", shown="1: all numbers"
    )
    compress: Annotated[Named, COMPRESSION] | None = setting(
        "NAME", "Compression of uploads, with error feedback.", shown="none"
    )
    downlink: Literal["free", "multicast", "unicast"] | None = setting(
        "WAY",
        "How models reach UEs: free, multicast, or unicast.",
        shown="free: at once, as in the paper",
    )
    bs_power_dbm: Decibels | None = setting("DBM", "Power of the base station.", shown="44; uma, rma: 49")

    @property
    def moves(self) -> bool:
        """Whether UEs move."""
        return self.mobility is not None and self.mobility.value is not None


class EnergySpec(Section, title="Energy"):
    """Energy of computing and sending."""

    model: Literal["yang", "chen", "lte", "5g-low", "5g-mmwave"] | None = setting(
        "NAME",
        "Energy model: κ·cycles·f² + p·t (yang, chen), or a measured phone.",
        flag="energy",
        shown="yang",
    )
    kappa: Annotated[NotNegative, within(0, 1e-20)] | None = setting(
        "KAPPA", "κ: a cycle at f Hz takes κ·f² joules.", shown="1e-28; chen: 1e-27"
    )
    budget: Annotated[Positive, within(0, 1e12)] | None = setting(
        "JOULES",
        "Energy each UE may spend before it leaves.",
        flag="energy-budget",
        shown="no limit",
    )
