"""The figures of the paper's Section VI. A new one is its definition, and its name here."""

from perfeds2.paper.figures.section_6 import exp_1, exp_2, exp_3, exp_4, exp_5, exp_6, exp_7, exp_8

FIGURES = {figure.name: figure for figure in (exp_1, exp_2, exp_3, exp_4, exp_5, exp_6, exp_7, exp_8)}
