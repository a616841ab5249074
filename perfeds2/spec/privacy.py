"""Check the privacy settings, and find the noise that they ask for along a timeline."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from perfeds2.errors import InputError
from perfeds2.learning.learner import Learner
from perfeds2.learning.task import parameters
from perfeds2.privacy import DELTA, FEWEST_MEMBERS, MOST_MEMBERS
from perfeds2.privacy.accounting import densest, epsilon_of, level_of, privacy_loss, sensitivity, worst_losses
from perfeds2.spec.fields import PrivacySpec, Spec
from perfeds2.spec.tasks import model_of
from perfeds2.timeline.protocol import Protocol
from perfeds2.timeline.record import Timeline


def refuse_unless_private(privacy: PrivacySpec, algorithm: str, learner: Learner) -> None:
    """Refuse privacy settings that contradict each other, and methods for which noise on the sum is not enough."""
    flag = next((flag for flag, given in _given(privacy).items() if given is not None), None)
    if privacy.noise is not None and privacy.epsilon is not None:
        raise InputError(
            f"--dp-noise {privacy.noise:g} and --epsilon {privacy.epsilon:g} were both given; give one of them."
        )
    if learner.noise is None and privacy.epsilon is None:
        if flag is not None:
            raise InputError(f"{flag} has no effect without noise; add --dp-noise or --epsilon, or leave it out.")
        return
    if "uploads" in learner.merge.needs and not learner.merge_weighs:
        raise InputError(
            f"{algorithm} cannot be combined with {flag or 'noise'}: its server uses uploads one by one or again, "
            f"and only their sum is noisy. Remove it from --algorithms."
        )
    if learner.clip is None:
        raise InputError(f"{flag or 'noise'} needs --clip: without it, an upload may be of any length. Try --clip 1.")
    compressed = next((flag for flag, on in _compression(learner) if on), None)
    if compressed is not None:
        raise InputError(f"{compressed} may lengthen an upload after it was clipped; leave it out with {flag}.")


def refuse_unless_summable(privacy: PrivacySpec, algorithm: str, learner: Learner, quorum: int) -> None:
    """Refuse secure aggregation where a server needs more than the sum of a round's updates."""
    if not privacy.secure_aggregation:
        return
    flag = "--secure-aggregation"
    if "uploads" in learner.merge.needs or learner.merge_weighs:
        raise InputError(
            f"{algorithm} cannot be combined with {flag}: its server weighs, compares or keeps single uploads, and it would see "
            f"only their sum. Use an algorithm with --merge mean."
        )
    if learner.clip is None:
        raise InputError(f"{flag} needs --clip: devices clip, because the server sees no norms. Try --clip 1.")
    for compression, given in (("--top-k", learner.top_k), ("--compress", learner.compress)):
        if given is not None:
            raise InputError(
                f"{flag} cannot be combined with {compression}: masks hide which numbers are sent. Leave {compression} out."
            )
    if learner.bits is not None:
        raise InputError(f"{flag} cannot be combined with --bits: masked numbers have 32 bits. Leave --bits out.")
    if not FEWEST_MEMBERS <= quorum <= MOST_MEMBERS:
        raise InputError(
            f"{flag} needs from {FEWEST_MEMBERS} to {MOST_MEMBERS} updates in a round, and {algorithm} has {quorum}; set --quorum."
        )


def _compression(learner: Learner) -> tuple[tuple[str, object], ...]:
    return ("--bits", learner.bits), ("--top-k", learner.top_k), ("--compress", learner.compress)


def _given(privacy: PrivacySpec) -> dict[str, float | None]:
    return {
        "--dp-noise": privacy.noise,
        "--epsilon": privacy.epsilon,
        "--delta": privacy.delta,
        "--dp-bands": privacy.bands,
    }


def with_noise(privacy: PrivacySpec, learner: Learner, timeline: Timeline) -> Learner:
    """Return the learner with the noise along this timeline, if --epsilon asks for it.

    Raises:
        InputError: If the merge gives an upload of this timeline a weight above 1.
    """
    if not timeline.rounds:
        return learner
    return _noisy(privacy, learner, lambda: sensitivity(timeline, learner.bands).max(), timeline.staleness)


def with_noise_before(privacy: PrivacySpec, learner: Learner, protocol: Protocol, rounds: int) -> Learner:
    """Return the learner with noise that suffices for every timeline, since a federation's is not known beforehand.

    Raises:
        InputError: If the merge may give an upload a weight above 1.
    """
    stalest = rounds if protocol.max_staleness is None else min(protocol.max_staleness, rounds)
    return _noisy(
        privacy, learner, lambda: densest(rounds, protocol.rest_rounds, learner.bands)[-1], np.arange(stalest + 1)
    )


def _noisy(
    privacy: PrivacySpec, learner: Learner, worst: Callable[[], float], staleness: Int[np.ndarray, "..."]
) -> Learner:
    if learner.noise is None and privacy.epsilon is not None:
        learner = replace(learner, noise=float(worst()) / level_of(privacy.epsilon, privacy.delta or DELTA))
    weights = None if learner.noise is None else learner.merge.weights(staleness)
    if weights is not None:
        largest = float(np.max(np.asarray(weights), initial=0.0))
        if largest > 1 + 1e-6:
            raise InputError(
                f"{type(learner.merge).__name__} gives an upload the weight {largest:.3g}; with noise, weights are at most 1."
            )
    return learner


def losses_of(privacy: PrivacySpec, learner: Learner, timeline: Timeline) -> Float[np.ndarray, " n"] | None:
    """Return ε of every UE; None without noise."""
    if learner.noise is None:
        return None
    return privacy_loss(timeline, learner.noise, privacy.delta or DELTA, learner.bands)


def losses_by_merges(
    privacy: PrivacySpec, learner: Learner, protocol: Protocol, rounds: int
) -> Float[np.ndarray, " m"] | None:
    """Return the largest ε of a UE after 0, 1, 2, … merges, whatever the timeline; None without noise."""
    if learner.noise is None:
        return None
    worst = densest(rounds, protocol.rest_rounds, learner.bands)
    return epsilon_of(worst / learner.noise, privacy.delta or DELTA)


def privacy_facts(spec: Spec, learner: Learner, timeline: Timeline) -> dict[str, float]:
    """Return the noise, its length on a mean update relative to the clip, and ε of the worst and of the median UE."""
    losses = losses_of(spec.privacy, learner, timeline)
    if losses is None or learner.noise is None:
        return {}
    longer = math.sqrt(parameters(model_of(spec))) * learner.noise / timeline.quorum
    ends = {"epsilon_worst": float(losses.max()), "epsilon_median": float(np.median(losses))}
    return {"noise": learner.noise, "noise_to_clip": longer, **ends}


def losses_at(
    privacy: PrivacySpec, learner: Learner, timeline: Timeline, rounds: Sequence[int]
) -> list[dict[str, float]]:
    """Return the worst UE's ε after some numbers of rounds, as columns; no column without noise."""
    if learner.noise is None:
        return [{} for _ in rounds]
    found = worst_losses(timeline, rounds, learner.noise, privacy.delta or DELTA, learner.bands)
    return [{"epsilon": epsilon} for epsilon in found.tolist()]


def has_noise(privacy: PrivacySpec) -> bool:
    return privacy.noise is not None or privacy.epsilon is not None
