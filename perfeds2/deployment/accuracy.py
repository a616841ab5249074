"""Watch the mean accuracy of all devices, and raise an alarm when it falls."""

import math
from dataclasses import dataclass

from perfeds2.deployment.crew import Device
from perfeds2.deployment.record import Evaluation
from perfeds2.learning.metrics import METRICS

PERSONAL, LOSS = METRICS.index("test_accuracy_personal"), METRICS.index("train_loss")


@dataclass
class AccuracyWatch:
    """The mean over devices of the personal accuracy each reported last, and how far it is below its best."""

    fall: float = 0.0  # below its best
    alarm: str | None = None  # set while it is far below
    _total: float = 0.0  # sum of the accuracies last reported
    _count: int = 0  # of devices with an accuracy
    _best: tuple[int, float] = (0, 0.0)  # number of devices with an accuracy, and the best mean of theirs

    @property
    def mean(self) -> float | None:
        return self._total / self._count if self._count else None

    def update(self, device: Device, seen: Evaluation) -> None:
        """Replace a device's previous accuracy and loss by its latest ones."""
        value = seen.values[PERSONAL]
        latest = value if math.isfinite(value) else None
        for accuracy, sign in ((device.accuracy, -1), (latest, 1)):
            if accuracy is not None:
                self._total, self._count = self._total + sign * accuracy, self._count + sign
        device.evaluated, device.accuracy, device.loss = seen.version, latest, seen.values[LOSS]

    def check(self, most: float) -> str | None:
        """Raise an alarm if the mean falls by more than ``most`` below its best among at least as many devices.

        Returns:
            The alarm, if it is new.
        """
        if self._count > self._best[0]:
            self._best = self._count, 0.0
        now = self.mean or 0.0  # also if every model has diverged
        self._best = self._best[0], max(self._best[1], now)
        self.fall = self._best[1] - now
        before, self.alarm = self.alarm, None
        if self.fall > most:
            self.alarm = f"personal accuracy fell to {now:.1%} from {self._best[1]:.1%} at best (--alarm-fall)"
        return self.alarm if before is None else None
