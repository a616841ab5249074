"""Time rounds in a bare PyTorch loop on a GPU: everything on the device, five UEs in parallel with vmap.

With --graphs a round is captured once as a CUDA graph and replayed, so its time depends on the device alone. With
--exact it computes the meta-gradient: three batches, and the Hessian-vector product as a jvp of grad.
"""

import sys
from collections.abc import Callable

import numpy as np
import torch
import workload as work
from torch.func import grad, jvp, vmap
from torch.nn.functional import cross_entropy

Params = tuple[torch.Tensor, ...]


def mean_loss(params: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    weight1, bias1, weight2, bias2 = params
    return cross_entropy(torch.relu(x @ weight1 + bias1) @ weight2 + bias2, y)


def plain(params: Params, x: torch.Tensor, y: torch.Tensor) -> Params:
    return grad(mean_loss)(params, x[0], y[0])


def meta(params: Params, x: torch.Tensor, y: torch.Tensor) -> Params:
    """Return (I − α∇²f(w; D_h)) ∇f(w − α∇f(w; D_in); D_o)."""
    inner = grad(mean_loss)(params, x[0], y[0])
    outer = grad(mean_loss)(tuple(w - work.ALPHA * g for w, g in zip(params, inner, strict=True)), x[1], y[1])
    curvature = jvp(lambda w: grad(mean_loss)(w, x[2], y[2]), (params,), (outer,))[1]
    return tuple(g - work.ALPHA * h for g, h in zip(outer, curvature, strict=True))


def main() -> None:
    graphs = "--graphs" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--graphs"]
    given = work.options()
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU here.")
    torch.manual_seed(given.seed)
    torch.set_float32_matmul_precision("high")  # TF32, which is JAX's default
    x, y = (torch.from_numpy(a).cuda() for a in work.data(given.seed))
    layers = [torch.nn.Linear(work.FEATURES, work.HIDDEN), torch.nn.Linear(work.HIDDEN, work.CLASSES)]
    params = tuple(w.detach().T.contiguous().cuda() for layer in layers for w in (layer.weight, layer.bias))
    jobs = vmap(meta if given.exact else plain, in_dims=(None, 0, 0))

    def round_() -> None:
        ues = torch.rand(work.UES, device="cuda").argsort()[: work.QUORUM]
        at = torch.randint(work.SAMPLES, (work.QUORUM, 3 if given.exact else 1, work.BATCH), device="cuda")
        own = ues[:, None, None]
        for w, g in zip(params, jobs(params, x[own, at], y[own, at]), strict=True):
            w.sub_(g.sum(dim=0), alpha=work.BETA / work.QUORUM)

    step = captured(round_, params) if graphs else round_

    def play(rounds: int) -> None:
        for _ in range(rounds):
            step()
        torch.cuda.synchronize()

    def weights() -> list[np.ndarray]:
        return [w.cpu().numpy() for w in params]

    name = "bare PyTorch loop" + (", CUDA graphs" if graphs else "") + (", exact Hessian" if given.exact else "")
    work.measure(name, ["torch"], play, weights, given.rounds, given.seed)


def captured(round_: Callable[[], None], params: Params) -> Callable[[], None]:
    """Capture a round as one CUDA graph. The warm-up trains a little, which is undone."""
    before, graph, side = [w.clone() for w in params], torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            round_()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        round_()
    for w, old in zip(params, before, strict=True):
        w.copy_(old)
    return graph.replay


if __name__ == "__main__":
    main()
