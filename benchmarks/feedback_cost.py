"""Measure what feedback to a schedule adds to a training in the default cell.

``python -m benchmarks.feedback_cost [ROUNDS] [REPEATS]`` plays and trains the same number of rounds of PerFedS2 twice, in turns:
with the reports of UEs, in chunks, and in one piece, where the schedule gets no reports. It prints the median processor
seconds of both and their ratio.
"""

import statistics
import sys
import time
from dataclasses import replace

import numpy as np

from perfeds2 import spec_from
from perfeds2.learning.compiled import one_core_each
from perfeds2.learning.points import evaluation_points
from perfeds2.learning.train import train, train_in_chunks
from perfeds2.runs.trainer import PreparedTraining, Workbench
from perfeds2.runs.training import trainings_of
from perfeds2.spec.build import open_play

SCHEDULES = "power_of_choice:10", "oort", "tifl_adaptive"


def main(rounds: int = 600, repeats: int = 7) -> None:
    one_core_each()
    for schedule in SCHEDULES:
        settings = {"algorithms": ["PerFedS2"], "schedule": schedule, "rounds": rounds, "seeds": [0]}
        settings |= {"bandwidth": "equal_share", "shares": "equal"}
        specs = spec_from(**settings, feedback_rounds=rounds), spec_from(**settings)
        whole, chunked = (Workbench().prepare(trainings_of(spec)[0]) for spec in specs)
        taken_s: list[list[float]] = [[], []]
        for repeat in range(repeats + 1):
            for run, one, times in zip((in_one_piece, in_chunks), (whole, chunked), taken_s, strict=True):
                since = time.process_time()
                run(one)
                if repeat:  # the first compiles
                    times.append(time.process_time() - since)
        without_s, with_s = map(statistics.median, taken_s)
        ratio = statistics.median(b / a for a, b in zip(*taken_s, strict=True))
        print(f"{schedule}: {without_s:.2f} s, {with_s:.2f} s with feedback: {ratio:.2f} ×")


def in_one_piece(one: PreparedTraining) -> None:
    timeline = open_play(one.training.spec, one.stage, one.algorithm).play(np.full(one.task.ues, np.nan))
    learner = replace(one.algorithm.learner, feedback=None)
    for _ in train(one.task, timeline, learner, evaluation_points(timeline)):
        pass


def in_chunks(one: PreparedTraining) -> None:
    play = open_play(one.training.spec, one.stage, one.algorithm)
    for _ in train_in_chunks(one.task, play, one.algorithm.learner):
        pass


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
