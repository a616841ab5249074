"""Fit the rounds of baselines whose UEs send nothing: alone, or without any round."""

from dataclasses import replace

from perfeds2.errors import InputError
from perfeds2.learning.learner import Learner
from perfeds2.network.cell import Cell
from perfeds2.spec.fields import Spec
from perfeds2.spec.privacy import has_noise


def without_others(spec: Spec, name: str, learner: Learner) -> Learner:
    """Return a learner without its settings for uploads if its UEs train alone; return any other unchanged.

    Raises:
        InputError: The settings ask for privacy of uploads.
    """
    if not learner.objective.is_alone:
        return learner
    if has_noise(spec.privacy) or spec.privacy.secure_aggregation:
        raise InputError(
            f"{name} uploads nothing that noise or masks could hide; remove it from --algorithms, or leave out "
            f"--dp-noise, --epsilon and --secure-aggregation."
        )
    return replace(learner, clip=None, bits=None, top_k=None, compress=None, attack=None)


def alone_in(cell: Cell, learner: Learner) -> Cell:
    """Return the cell without its downlink for UEs that train alone."""
    return replace(cell, downlink=None, downlink_s=0.0) if learner.objective.is_alone else cell


def rounds_of(spec: Spec, learner: Learner) -> int | None:
    """Return after how many rounds a timeline ends; 0 without training."""
    return spec.run.rounds if learner.objective.trains else 0
