"""Set up JAX for a command that trains."""

import os


def prepare_to_train(trainings: int = 1, workers: int | None = 1) -> None:
    """Set up JAX before it is imported.

    Several trainings get one core each, so that the results do not depend on the number of cores. If processes may share a
    GPU, this one takes no more memory than it needs.
    """
    from perfeds2.learning.compiled import deterministic, keep_compiled, one_core_each

    os.environ.update(deterministic())
    if workers != 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if trainings > 1:
        one_core_each()
    keep_compiled()
