"""Name the metrics of a model. Imports no JAX, so tables and reports do not need it."""

from collections.abc import Mapping
from dataclasses import dataclass

METRICS = ("train_loss", "train_loss_personal", "test_accuracy", "test_accuracy_personal")
NEW_UES_STEPS = (0, 1, 5, 10)  # personal steps of UEs that never trained
NEW_UES_METRICS = tuple(f"new_ues_accuracy_{steps}" for steps in NEW_UES_STEPS)  # their test accuracy after each


@dataclass(frozen=True)
class Score:
    """The name and number format of the accuracy columns. Larger is better."""

    word: str  # its name in a sentence
    is_share: bool = False  # from 0 to 1, shown in per cent
    form: str = ".4g"  # number format

    @property
    def scale(self) -> int:
        return 100 if self.is_share else 1

    @property
    def unit(self) -> str:
        return " %" if self.is_share else ""

    @property
    def head(self) -> str:
        """Return the title of a column or an axis."""
        return f"{self.word} (%)" if self.is_share else self.word

    def show(self, value: float) -> str:
        return f"{self.scale * value:{self.form}}{self.unit}"

    def level(self, target: float) -> str:
        """Return a target as it was given, such as 95 %."""
        return f"{self.scale * target:.4g}{self.unit}"

    def named(self, metric: str) -> str:
        """Return the label of a metric on an axis."""
        if metric in NEW_UES_METRICS:
            steps = metric.rpartition("_")[2]
            return f"Test {self.head} of new UEs after {steps} personal step{'' if steps == '1' else 's'}"
        whose = "Personalised" if metric.endswith("_personal") else "Global"
        return f"{whose} training loss" if "loss" in metric else f"{whose} test {self.head}"


ACCURACY = Score("accuracy", is_share=True, form=".1f")
SCORES = {"accuracy": ACCURACY, "r2": Score("R²", form=".3f"), "rmse": Score("−RMSE"), "mae": Score("−MAE")}


def score_of(name: str) -> Score:
    """Return the score of a metric. A user's own metric keeps its name."""
    return SCORES.get(name, Score(name))


def recorded(row: Mapping[str, object]) -> tuple[str, ...]:
    """Return the metrics that an evaluation or a summary has, with those of new UEs if there are any."""
    return METRICS + tuple(name for name in NEW_UES_METRICS if name in row)
