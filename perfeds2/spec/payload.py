"""How are the uploads of an algorithm made shorter, if it bears that?"""

from typing import Any

from perfeds2.errors import InputError
from perfeds2.learning.merges import Merge, OfMean, Undrafted
from perfeds2.learning.methods.scaffold import Scaffold
from perfeds2.spec.fields import Spec


def shortened(spec: Spec, algorithm: str, objective: Any, merge: Merge | OfMean) -> dict[str, Any]:
    """The bits of each number and the share of the numbers, as parts of a learner; None where nothing is left out."""
    bits = None if spec.radio.bits == 32 else spec.radio.bits
    top_k = None if spec.radio.top_k == 1 else spec.radio.top_k
    for given, does in ((bits, f"--bits {bits} would round"), (top_k, f"--top-k {top_k} would cut")):
        if given is not None and isinstance(objective, Scaffold):
            raise InputError(
                f"{does} what SCAFFOLD's control variates are computed from at the server, and not at the UE; leave it out, or "
                f"take --algorithms without {algorithm}."
            )
    if top_k is not None and isinstance(merge, Undrafted):
        raise InputError(
            f"--top-k {top_k} does not go with {algorithm}, which merges late uploads as well: a UE could not know which of them "
            f"counted; leave it out, or take --algorithms without {algorithm}."
        )
    return {"bits": bits, "top_k": top_k}
