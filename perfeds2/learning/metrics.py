"""What is measured of a model, and what is it called? (No JAX, so that tables and reports need none.)"""

from dataclasses import dataclass

METRICS = ("train_loss", "train_loss_personal", "test_accuracy", "test_accuracy_personal")


@dataclass(frozen=True)
class Score:
    """What stands in the columns of the accuracy. More is better."""

    word: str  # in a sentence
    is_share: bool = False  # from 0 to 1, shown in per cent
    form: str = ".4g"  # of its numbers

    @property
    def scale(self) -> int:
        return 100 if self.is_share else 1

    @property
    def unit(self) -> str:
        return " %" if self.is_share else ""

    @property
    def head(self) -> str:
        """Of a column or an axis."""
        return f"{self.word} (%)" if self.is_share else self.word

    def show(self, value: float) -> str:
        return f"{self.scale * value:{self.form}}{self.unit}"

    def level(self, target: float) -> str:
        """A target as it was given: 95 %."""
        return f"{self.scale * target:.4g}{self.unit}"

    def named(self, metric: str) -> str:
        """What a metric is called at an axis."""
        whose = "Personalised" if metric.endswith("_personal") else "Global"
        return f"{whose} training loss" if "loss" in metric else f"{whose} test {self.head}"


ACCURACY = Score("accuracy", is_share=True, form=".1f")
SCORES = {"accuracy": ACCURACY, "r2": Score("R²", form=".3f"), "rmse": Score("−RMSE"), "mae": Score("−MAE")}


def score_of(name: str) -> Score:
    """What a metric of that name is called; one's own as it is."""
    return SCORES.get(name, Score(name))
