"""The public names of this package, for figures and studies of your own."""

from perfeds2.chart import Chart as Chart
from perfeds2.chart import ChartAxis as ChartAxis
from perfeds2.chart import LineStyle as LineStyle
from perfeds2.chart import Series as Series
from perfeds2.report.live import progress as progress
from perfeds2.report.read import load_run as load_run

__all__: list[str]  # type: ignore[reportUnsupportedDunderAll]  # the names above
