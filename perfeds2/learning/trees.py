"""Name the nests of arrays that objectives, merges and the training loop pass on to each other.

Each may be an array, a dict or tuple of such nests, or None. To a type checker all of them are ``Any``. A replay has
JAX arrays, and a federation may have NumPy arrays.
"""

from typing import TypeAlias

import numpy as np
from jaxtyping import Array, PyTree

Tree: TypeAlias = PyTree
Batch: TypeAlias = PyTree  # inputs and targets of some samples; of several batches, stacked along the first axes
Memory: TypeAlias = PyTree  # what a UE keeps between its jobs
Told: TypeAlias = PyTree  # what a merge sends along with a model
MergeState: TypeAlias = PyTree  # what a merge keeps between rounds
Rows: TypeAlias = Array | np.ndarray
Scalar: TypeAlias = Array | np.floating | float
