"""Export the weights of a finished run for other programs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from perfeds2 import __version__
from perfeds2.errors import InputError, did_you_mean
from perfeds2.files import write_atomically
from perfeds2.learning.models.adapter import Adapted
from perfeds2.learning.models.model import bare
from perfeds2.runs.comparison import Which, load_models
from perfeds2.runs.folder import read_run
from perfeds2.spec.tasks import model_metadata, model_of


def export(folder: Path, algorithm: str | None, seed: int | None, out: Path) -> str:
    """Write one model of a finished run to a safetensors file.

    Args:
        folder: The folder of the run.
        algorithm: The algorithm to export; None if the run has only one.
        seed: The seed to export; None if the run has only one.
        out: The file to write.

    Returns:
        One line that describes the exported model.

    Raises:
        InputError: If the run has no model, or the choice is ambiguous or unknown.
    """
    if not (folder / "summary.json").exists() or not (folder / "model.safetensors").exists():
        raise InputError(f"{folder} holds no finished run with a model; expected the folder of a run that was trained.")
    spec = read_run(folder)
    models = load_models(spec, folder)
    name, number = choose(list(models), algorithm, seed)
    params = models[name, number]
    network = bare(model_of(spec)) if spec.task.adapter is not None else None
    if isinstance(network, Adapted):  # other programs need the whole model
        params = {key: np.asarray(values) for key, values in network.merged(params).items()}
    about = {"perfeds2": __version__, "task": spec.task.name.text, "algorithm": name, "seed": str(number)}
    about |= model_metadata(spec, number)
    data = save(params, about)
    with write_atomically(out) as file:
        file.write(data)
    return f"{name}, seed {number}: {sum(array.size for array in params.values()):,} numbers, {len(data):,} bytes"


def choose(models: Sequence[Which], algorithm: str | None, seed: int | None) -> Which:
    """Return the one (algorithm, seed) that fits the choice; raise InputError if there is none or several."""
    names, seeds = list(dict.fromkeys(name for name, _ in models)), sorted({seed for _, seed in models})
    if algorithm is not None and algorithm not in names:
        raise InputError(f"--algorithm {algorithm} is not in this run; {did_you_mean(algorithm, names)}")
    if seed is not None and seed not in seeds:
        raise InputError(f"--seed {seed} is not in this run; expected one of {', '.join(map(str, seeds))}.")
    fitting = [each for each in models if algorithm in (None, each[0]) and seed in (None, each[1])]
    if len(fitting) > 1:
        missing = "--algorithm" if algorithm is None and len(names) > 1 else "--seed"
        among = names if missing == "--algorithm" else seeds
        raise InputError(f"the run has {len(models)} models; choose one by {missing}, of {', '.join(map(str, among))}.")
    return fitting[0]
