"""PersA-FL: asynchronous personalised learning, by MAML or by Moreau envelopes."""

from perfeds2.learning.methods.fedbuff import FedBuff
from perfeds2.learning.objectives import Moreau, PerFed
from perfeds2.learning.settings import Length, setting, traced

ETA = "η_g: the server's step size."


@traced
class PersAFL(PerFed):
    """PerFed's steps along (I − α∇²f) ∇f(w − α∇f), and w −= η_g·Δ_i as soon as an upload arrives.

    With η_g = 1 it is PerFed-ASY. The paper's server applies every Δ as it arrives, without a staleness bound
    (although its theory assumes one). With a bound and more than one upload per round it is PerFedS2. We found no
    code to compare with.
    """

    paper = "Toghani et al., 2022, option B"
    mode = "ASY"

    server_step: Length = setting(ETA, default=1.0)

    @property
    def objective(self) -> PerFed:
        return PerFed(self.alpha, self.hessian, self.hessian_batch, self.inner_clip, self.anneal)

    @property
    def merge(self) -> FedBuff:
        return FedBuff("constant", self.server_step)


@traced
class PersAFLMoreau(Moreau):
    """Moreau's steps along λ(w − θ̂(w)), and w −= η_g·Δ_i as soon as an upload arrives.

    θ̂ comes from K steps, as pFedMe's; the paper iterates to an accuracy ν. Evaluations take plain personal steps,
    without the pull towards w. With η_g = 1 it is Moreau-ASY. We found no code to compare with.
    """

    paper = "Toghani et al., 2022, option C"
    mode = "ASY"

    server_step: Length = setting(ETA, default=1.0)

    @property
    def objective(self) -> Moreau:
        return Moreau(self.alpha, self.moreau, self.moreau_steps)

    merge = PersAFL.merge
