"""Time rounds in a bare PyTorch loop: five backward passes that accumulate gradients, and one hand-written step.

With --exact it computes the meta-gradient with ``torch.func``: three batches, and the Hessian-vector product as a jvp
of grad.
"""

from collections.abc import Callable

import numpy as np
import torch
import workload as work
from torch.func import functional_call, grad, jvp
from torch.nn.functional import cross_entropy

Params = dict[str, torch.Tensor]


def main() -> None:
    given = work.options()
    torch.manual_seed(given.seed)
    x, y = map(torch.from_numpy, work.data(given.seed))
    model = torch.nn.Sequential(
        torch.nn.Linear(work.FEATURES, work.HIDDEN), torch.nn.ReLU(), torch.nn.Linear(work.HIDDEN, work.CLASSES)
    )

    def batch(ue: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.randint(work.SAMPLES, (work.BATCH,))
        return x[ue, at], y[ue, at]

    def weights() -> list[np.ndarray]:
        return [w.detach().numpy().T for w in model.parameters()]

    play = exact_rounds(model, batch) if given.exact else plain_rounds(model, batch)
    name = "torch.func, exact Hessian" if given.exact else "bare PyTorch loop"
    work.measure(name, ["torch"], play, weights, given.rounds, given.seed)


def plain_rounds(model: torch.nn.Module, batch: Callable[[int], tuple]) -> Callable[[int], None]:
    params = list(model.parameters())

    def play(rounds: int) -> None:
        for _ in range(rounds):
            for w in params:
                w.grad = None
            for ue in torch.randperm(work.UES)[: work.QUORUM].tolist():
                x, y = batch(ue)
                cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for w in params:
                    assert w.grad is not None
                    w.sub_(w.grad, alpha=work.BETA / work.QUORUM)

    return play


def exact_rounds(model: torch.nn.Module, batch: Callable[[int], tuple]) -> Callable[[int], None]:
    """Return rounds with the mean over five UEs of (I − α∇²f(w; D_h)) ∇f(w − α∇f(w; D_in); D_o)."""
    params = {name: w.detach() for name, w in model.named_parameters()}  # shares memory with the module

    def loss(params: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(model, params, (x,)), y)

    gradient = grad(loss)

    def meta(params: Params, ue: int) -> Params:
        inner_batch, outer_batch, hessian_batch = batch(ue), batch(ue), batch(ue)
        inner = gradient(params, *inner_batch)
        outer = gradient({name: w - work.ALPHA * inner[name] for name, w in params.items()}, *outer_batch)
        curvature = jvp(lambda w: gradient(w, *hessian_batch), (params,), (outer,))[1]
        return {name: g - work.ALPHA * curvature[name] for name, g in outer.items()}

    def play(rounds: int) -> None:
        for _ in range(rounds):
            jobs = [meta(params, ue) for ue in torch.randperm(work.UES)[: work.QUORUM].tolist()]
            for name, w in params.items():
                w.sub_(sum(job[name] for job in jobs), alpha=work.BETA / work.QUORUM)

    return play


if __name__ == "__main__":
    main()
