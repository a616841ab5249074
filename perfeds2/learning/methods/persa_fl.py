"""PersA-FL: asynchronous personalised learning, by MAML or by Moreau envelopes."""

from perfeds2.learning.methods.fedbuff import FedBuff
from perfeds2.learning.objectives import Moreau, PerFed
from perfeds2.learning.settings import Length, setting, traced

ETA = "η_g: the server's step size."


@traced
class PersAFL(PerFed):
    """PerFed's steps along (I − α∇²f) ∇f(w − α∇f), and w −= η_g·Δ_i as soon as an upload arrives."""

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
    """Moreau's steps along λ(w − θ̂(w)), and w −= η_g·Δ_i as soon as an upload arrives."""

    paper = "Toghani et al., 2022, option C"
    mode = "ASY"

    server_step: Length = setting(ETA, default=1.0)

    @property
    def objective(self) -> Moreau:
        return Moreau(self.alpha, self.moreau, self.moreau_steps)

    merge = PersAFL.merge
