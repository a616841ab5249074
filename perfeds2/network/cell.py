"""Describe a cell: its UEs, how well the base station receives them, and how fast they compute."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Int

from perfeds2.network.cell_checks import check_fields
from perfeds2.network.channel import ByPosition, Channel, Fading
from perfeds2.network.errors import Errors, Outage
from perfeds2.network.fleet import Fleet
from perfeds2.network.link import UE_NOISE_FIGURE_DB, Downlink, Limit, PerUe
from perfeds2.network.mobility import Moves, Walk
from perfeds2.network.modulation import Link
from perfeds2.network.profile import Profile
from perfeds2.network.radios import STREAMS, Radio, Where
from perfeds2.shown import as_html, axes_for, draw_places, in_a_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Layout = Literal["disc", "uniform", "equal"]
Ues = Int[np.ndarray, " h"]  # numbers of some UEs


@dataclass(frozen=True)
class Cell:
    """One base station and n unequal UEs. The defaults are the paper's Table I; we chose what it leaves open."""

    distance_m: PerUe  # to the base station (the paper's first c_i, erratum 4)
    cpu_hz: PerUe  # ϑ_i
    cycles_per_sample: float = 250_000.0  # the paper's second c_i; it gives no value
    power_w: PerUe | float = 0.01  # p_i
    bandwidth_hz: float = 1e6  # B, shared by OFDMA
    path_loss_exponent: float = 3.8  # κ
    noise_dbm_per_hz: float = -174.0  # N0
    fading_scale: float = 40.0  # Rayleigh scale of the coefficient h
    downlink_s: float = 0.0  # seconds until a UE has the model; 0 in the paper
    seed: int = 0  # seed of the fading
    radio: Radio | None = None  # None: Table I's, with the κ and fading scale above
    rician_k: float = 0.0  # power ratio of the steady to the scattered part; 0: Rayleigh, infinite: no fading
    most_bits_per_s_hz: float | None = None  # limit of the modulation; None: the radio's own (Table I has none)
    coherence_s: float | None = None  # redraw the fading after this time; None: every round
    angle_rad: PerUe | None = None  # direction of each UE; None: drawn when needed
    moves: Moves | None = None  # how UEs move; None: they stand still
    downlink: Downlink | None = None  # how models are sent; None: instantly, apart from downlink_s
    fleet: Fleet | None = None  # per-UE gains, uplinks and hours; None: all UEs use the cell's and are always present
    offset_db: PerUe | None = None  # added to each UE's gain unless measured: its antenna, less the walls; None: 0
    link: Link | None = None  # what links carry; None: Shannon's rate up to ``most_bits_per_s_hz``
    errors: Errors | None = None  # what happens to uploads with errors; None: there are none
    outage: Outage | None = None  # what happens to uploads at low rates; None: they go on
    profile: Profile | None = None  # share of the band that other traffic leaves; None: all of it
    csi_error_db: float = 0.0  # deviation of what policies and schedules know of the signals
    csi_delay: int = 0  # rounds or blocks of fading by which they know them late

    def __post_init__(self) -> None:
        object.__setattr__(self, "distance_m", np.asarray(self.distance_m, float))
        object.__setattr__(self, "cpu_hz", np.asarray(self.cpu_hz, float))
        check_fields(vars(self))
        object.__setattr__(self, "distance_m", np.maximum(self.distance_m, MIN_DISTANCE_M))

    @classmethod
    def draw(
        cls,
        ues: int,
        seed: int = 0,
        *,
        layout: Layout = "disc",
        radius_m: float = 200.0,
        cpu_hz: tuple[float, float] = (2e8, 2e9),
        **rest: Any,
    ) -> "Cell":
        """Draw a random cell.

        The first m UEs are the same for every n ≥ m.

        Args:
            ues: n, the number of UEs.
            seed: Seed of positions, processors and fading.
            layout: "disc" (uniform over the disc), "uniform" (distances uniform in [0, radius]) or "equal" (all at
                half the radius).
            radius_m: Radius of the disc in metres.
            cpu_hz: Smallest and largest CPU frequency in Hz; frequencies are log-uniform between them.
            **rest: Other fields of the cell.

        Returns:
            The cell.

        Raises:
            ValueError: If a value is out of range.
        """
        if ues < 1:
            raise ValueError(f"a cell needs at least 1 UE, got {ues}.")
        slow, fast = cpu_hz
        if not (0 < slow < np.inf and 0 < fast < np.inf):
            raise ValueError(f"cpu_hz must be two finite frequencies above 0, got {cpu_hz}.")
        uniform = np.random.default_rng([seed, 1]).random(ues)
        parts = {"disc": np.sqrt(uniform), "uniform": uniform, "equal": np.full(ues, 0.5)}  # fraction of the radius
        if layout not in parts:
            raise ValueError(f"layout must be {', '.join(parts)}, got {layout!r}.")
        speed = slow * (fast / slow) ** np.random.default_rng([seed, 2]).random(ues)
        return cls(radius_m * parts[layout], speed, seed=seed, **rest)

    @property
    def ues(self) -> int:
        """n, the number of UEs."""
        return self.distance_m.size

    @property
    def is_plain(self) -> bool:
        """Whether all uploads use the shared band, all UEs are always present and all jobs of a UE are alike."""
        return self.fleet is None or self.fleet.is_plain

    def present(self, time_s: float) -> Bool[np.ndarray, " n"] | None:
        """Return which UEs are present at a time.

        Args:
            time_s: Simulated time in seconds.

        Returns:
            A mask of shape (n,), or None if all UEs are always present.
        """
        presence = None if self.fleet is None else self.fleet.presence
        return None if presence is None else presence.present(time_s)

    @cached_property
    def where(self) -> Where:
        """Positions of the UEs at time 0. Table I's radio uses only their distances; shadowing needs the plane."""
        angle = self.angle_rad
        if angle is None:
            angle = 2 * np.pi * np.random.default_rng([self.seed, STREAMS["angle"]]).random(self.ues)
        return Where(self.distance_m * np.cos(angle), self.distance_m * np.sin(angle), self.seed)

    def at(self, time_s: float) -> "Cell":
        """Return the same cell with its UEs where they are at a time.

        Args:
            time_s: Simulated time in seconds.

        Returns:
            The cell; this one if its UEs do not move.
        """
        if self._walk is None:
            return self
        x_m, y_m = self._walk.at(time_s)
        return replace(self, distance_m=np.hypot(x_m, y_m), angle_rad=np.arctan2(y_m, x_m))

    @cached_property
    def _walk(self) -> Walk | None:
        moves = self.moves
        return None if moves is None else moves.walk(moves, self.where.x_m, self.where.y_m, self.seed)

    @cached_property
    def channel(self) -> Channel:
        """The signals of the UEs over time. A cell of your own may return another channel."""
        moved, steady = None, None
        if self.moves is not None and self.coherence_s is not None:
            moved = ByPosition(self._relative_signal, self.moves.speed_mps, self.coherence_s)
        if self.fleet is not None and not self.fleet.shares_band.all():
            steady = ~self.fleet.shares_band  # a UE's own uplink does not fade
        return Channel(self.mean_signal_hz, self.fading, self.seed, self.coherence_s, steady=steady, moved=moved)

    @property
    def fading(self) -> Fading:
        """The distribution of the fading."""
        return Fading(self.rician_k, self.fading_scale if self.radio is None else None)

    def signal_hz(self, round_: int, ues: Ues | None = None) -> PerUe:
        """Return the received power over the noise density in a round, p·h·d^−κ / N0, with h redrawn each round.

        Args:
            round_: The round, or the time block if there is a coherence time.
            ues: Numbers of the UEs; None for all.

        Returns:
            The signal of each UE in Hz, shape (n,) or (h,).
        """
        return self.channel.signal_hz(round_, ues)

    def _relative_signal(self, time_s: float) -> PerUe:
        return self.at(time_s).mean_signal_hz / self.mean_signal_hz

    @cached_property
    def mean_signal_hz(self) -> PerUe:
        """The signal of each UE at h = 1, before fading, in Hz, shape (n,)."""
        if self.radio is None:
            noise_w_per_hz = 10 ** (self.noise_dbm_per_hz / 10) / 1000
            gain = self.distance_m**-self.path_loss_exponent * self.beyond_path
            if self.fleet is not None:
                gain[self.fleet.measured] = self.fleet.gain / self.fading.signal_of_amplitude(1.0)
            signal_hz = self.power_w / noise_w_per_hz * gain
        else:
            noise_w_per_hz = 10 ** ((self.noise_dbm_per_hz + self.radio.noise_figure_db) / 10) / 1000
            signal_hz = self.sent_power_w * self._gain / noise_w_per_hz
        if self.fleet is not None and not self.fleet.shares_band.all():
            signal_hz[~self.fleet.shares_band] = self.fleet.signal_on(self.bandwidth_hz)
        return signal_hz

    def band_hz(self, time_s: float) -> float:
        """Return the uplink band that other traffic leaves at a time."""
        return self.bandwidth_hz if self.profile is None else self.bandwidth_hz * self.profile.share_at(time_s)

    @cached_property
    def _gain(self) -> PerUe:
        assert self.radio is not None
        gain = self.radio.gain(self.where) * self.beyond_path
        if self.fleet is not None:
            gain[self.fleet.measured] = self.fleet.gain
        return gain

    @property
    def beyond_path(self) -> PerUe | float:
        """What antennas and walls multiply gains by, shape (n,)."""
        return 1.0 if self.offset_db is None else 10 ** (self.offset_db / 10)

    @property
    def sent_power_w(self) -> PerUe | float:
        """Transmit power of the UEs in W: full power, or what power control allows."""
        if self.radio is None:
            return self.power_w
        return self.radio.power_w(self._gain, self.power_w, self.bandwidth_hz / self.ues)

    @cached_property
    def cap_bits_per_s_hz(self) -> float | None:
        """The spectral efficiency that no link exceeds, in bit/s/Hz; None for no limit."""
        if self.most_bits_per_s_hz is not None:
            return self.most_bits_per_s_hz
        return None if self.radio is None else self.radio.most_bits_per_s_hz

    @property
    def limit(self) -> Limit:
        """What links carry, or the limit of Shannon's rate, as ``rate_bps`` takes it."""
        return self.cap_bits_per_s_hz if self.link is None else self.link

    def compute_s(self, samples: float | PerUe) -> PerUe:
        """Return the seconds from hand-out to a finished gradient, with the fixed delay ``downlink_s``.

        Args:
            samples: Samples that one job computes on, or one number for each UE.

        Returns:
            The time of each UE in seconds, shape (n,).
        """
        return self.downlink_s + compute_seconds(samples, self.cycles_per_sample, self.cpu_hz)

    def job_s(self, samples: float, at_once: int) -> PerUe:
        """Return the seconds from hand-out to a finished gradient, including the time to send the model.

        Args:
            samples: Samples that one job computes on.
            at_once: How many UEs get the model at once.

        Returns:
            The time of each UE in seconds, shape (n,).
        """
        return self.model_s(at_once) + compute_seconds(samples, self.cycles_per_sample, self.cpu_hz)

    def model_s(self, at_once: int) -> PerUe | float:
        """Return the seconds until UEs have a model, if the base station is free.

        Args:
            at_once: How many UEs get the model at once. Multicast always counts all UEs.

        Returns:
            The time of each UE in seconds, shape (n,), or one time for all without a downlink.
        """
        if self.downlink is None:
            return self.downlink_s
        heard_hz = self.heard_hz(0.0)
        return self.downlink_s + self.downlink.seconds(heard_hz, self.bandwidth_hz, at_once, self.limit)

    def send_models(self, ues: Ues, now_s: float, free_s: float) -> tuple[PerUe, float]:
        """Return how long UEs wait for the model they are handed now, and when the base station has sent it.

        The base station sends one hand-out after the other.

        Args:
            ues: Numbers of the UEs that get the model.
            now_s: Time of the hand-out in seconds.
            free_s: When the base station has sent all earlier models, in seconds.

        Returns:
            The wait of each of these UEs in seconds, and when the base station is free again.
        """
        if self.downlink is None or not ues.size:
            return np.zeros(ues.size), free_s
        begin_s = max(now_s, free_s)
        heard_hz = self.heard_hz(begin_s)[ues]
        seconds = self.downlink.seconds(heard_hz, self.bandwidth_hz, ues.size, self.limit)
        return begin_s - now_s + seconds, begin_s + float(seconds.max())

    def heard_hz(self, time_s: float) -> PerUe:
        """Return the power that UEs receive at a time over the noise density, without fading, in Hz, shape (n,)."""
        return self._heard_hz if self._heard is None else self._heard.at(self.channel.block_at(0, time_s))

    @cached_property
    def _heard(self) -> ByPosition | None:
        if self.moves is None or self.coherence_s is None:
            return None
        return ByPosition(self._heard_at, self.moves.speed_mps, self.coherence_s)

    def _heard_at(self, time_s: float) -> PerUe:
        return self.at(time_s)._heard_hz

    @cached_property
    def _heard_hz(self) -> PerUe:
        assert self.downlink is not None
        noise_db = 0.0 if self.radio is None else UE_NOISE_FIGURE_DB - self.radio.noise_figure_db
        gain_hz = self.mean_signal_hz * self.fading.signal_of_amplitude(1.0) / self.sent_power_w
        return gain_hz * self.downlink.power_w * 10 ** (-noise_db / 10)

    def __repr__(self) -> str:
        where = f"{self.distance_m.min():.3g} to {self.distance_m.max():.3g} m"
        speed = f"{self.cpu_hz.min() / 1e9:.3g} to {self.cpu_hz.max() / 1e9:.3g} GHz"
        return in_a_line(self, f"{self.ues} UEs", where, speed, f"{self.bandwidth_hz / 1e6:g} MHz", f"seed {self.seed}")

    def _repr_html_(self) -> str:
        return as_html(repr(self), self.frame(), self.plot, (4, 3.4))

    def frame(self) -> "pd.DataFrame":
        """Return a table with one row per UE: its position, CPU frequency and mean SNR on an equal part of the band."""
        import pandas as pd

        x_m, y_m, heard_hz = self.where.x_m, self.where.y_m, self.mean_signal_hz * self.fading.signal_of_amplitude(1.0)
        places = {"ue": np.arange(self.ues), "distance_m": self.distance_m, "x_m": x_m, "y_m": y_m}
        snr_db = 10 * np.log10(heard_hz * self.ues / self.bandwidth_hz)
        return pd.DataFrame(places | {"cpu_hz": self.cpu_hz, "snr_db": snr_db})

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw the UEs around the base station; larger points are faster processors.

        Args:
            axes: Where to draw; None for new axes.

        Returns:
            The axes.
        """
        return draw_places(axes_for(axes, (4, 3.4)), self.where.x_m, self.where.y_m, self.cpu_hz)


MIN_DISTANCE_M = 1.0  # the path loss d^−κ does not hold at the antenna


def compute_seconds(samples: float | PerUe, cycles_per_sample: PerUe | float, cpu_hz: PerUe) -> PerUe:
    """Return the seconds a UE computes on one job: cycles per sample × samples / CPU frequency (Tcmp, eq. (11))."""
    return np.asarray(cycles_per_sample, float) * samples / np.asarray(cpu_hz, float)
