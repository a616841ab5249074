"""Methods that decide which UEs are merged in each round, as their papers write them down, in NumPy: see ``twins.py``.

Who arrived when is the clock's. What follows from it (whose turn it was, who is too far behind, which tier has worked how
often) is counted here once more, and asserted against the timeline.
"""

from typing import Any  # a World of twins.py

import numpy as np

from perfeds2.timeline.jobs import LOST


def tifl(world: Any, tiers):
    """Chai et al. 2020, algorithm 1 with a static policy: one tier a round, FedAvg among those chosen of it."""
    w = world.first
    for t, jobs in world.rounds():
        assert len({tiers[ue] for ue, _ in jobs}) == 1
        assert {version for _, version in jobs} == {t}
        w = sum(w - world.sgd(w, ue, t) for ue, _ in jobs) / len(jobs)
    return w


def fedat(world: Any, tiers, lam):
    """Chai et al. 2021, algorithms 1 and 2: tiers at their own pace, and weights that turn the counts of updates round."""
    count = max(tiers) + 1
    history, tier_models, updates = [world.first], [world.first] * count, [0] * count
    since = [0] * count  # the global round in which a tier's clients were handed the model
    for t, jobs in world.rounds():
        (m,) = {tiers[ue] for ue, _ in jobs}
        locals_ = []
        for ue, version in jobs:
            assert version == since[m]
            start = history[version]
            x = start.copy()
            for (batch,) in world.batches(ue, version):
                x = x - world.step * (world.gradient(x, batch) + lam * (x - start))
            locals_.append(x)
        tier_models[m] = sum(locals_) / len(locals_)
        updates[m] += 1
        total = sum(updates)
        history.append(sum(updates[count - 1 - i] / total * tier_models[i] for i in range(count)))
        since[m] = t + 1
    return history[-1]


def steps_of_compass(full_s, upload_s, groups, most, least):
    """The rule of FedCompass: the first of a group takes Q_max steps, the others as many as end by then, from Q_min on."""
    steps = {}
    for members in groups:
        first_s = min(full_s[ue] + upload_s[ue] for ue in members)
        for ue in members:
            fitting = int((first_s - upload_s[ue]) / (full_s[ue] / most) + 1e-6)
            steps[ue] = min(max(fitting, least), most)
    return steps


def fedcompass(world: Any, steps, alpha):
    """Li et al. 2024, algorithm 1, its server: each group's updates are added, all clients weigh 1/n."""
    history = [world.first]
    for t, jobs in world.rounds():
        w = history[-1].copy()
        for ue, version in jobs:
            x = history[version].copy()
            for (batch,) in world.batches(ue, version)[: steps[ue]]:
                x = x - world.step * world.gradient(x, batch)
            w = w - alpha / np.sqrt(1 + t - version) / world.ues * (history[version] - x)
        history.append(w)
    return history[-1]


def safa(world: Any, lag):
    """Wu et al. 2021: lag-tolerant distribution (eq. 3), the three steps of aggregation (eqs. 6 to 8), all clients' data alike."""
    clients, line = range(world.ues), world.line
    history, version = [world.first], dict.fromkeys(clients, 0)
    cache: dict[int, Any] = dict.fromkeys(clients, world.first)
    undrafted, picked_before = [], set()
    for t, jobs in world.rounds():
        for k in clients:
            if version[k] < t - lag:  # deprecated: forced to take the newest model
                version[k], cache[k] = t, history[-1]
        picked = {}
        for k, v in jobs:
            assert v == version[k]
            picked[k] = history[v] - world.sgd(history[v], k, v)
        cache |= picked
        history.append(sum(cache.values()) / world.ues)
        lost = line.rows(LOST)
        bypass = lost.ue[(lost.round == t) & lost.arrived].tolist()
        assert set(bypass) <= picked_before - picked.keys()
        for k in bypass:
            cache[k] = history[version[k]] - world.sgd(history[version[k]], k, version[k])
        for k in (*picked, *bypass):
            version[k] = t + 1
        undrafted.append(bypass)
        picked_before = set(picked)
    return history[-1], undrafted


TWINS_OF_ROUNDS = {"TiFL": tifl, "FedAT": fedat, "FedCompass": fedcompass, "SAFA": safa}
