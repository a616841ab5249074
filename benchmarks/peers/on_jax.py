"""Time rounds in a hand-written JAX loop: five random UEs in parallel, all rounds in one compiled loop.

With --exact it computes the meta-gradient: three batches, and the Hessian-vector product as a jvp of grad. There is
nothing else: every UE has the newest model, and there is neither a clock nor a store of old models.
"""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import workload as work

Params = list[jax.Array]


def mean_loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    weight1, bias1, weight2, bias2 = params
    logits = jax.nn.relu(x @ weight1 + bias1) @ weight2 + bias2
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1).mean()


def plain(params: Params, x: jax.Array, y: jax.Array) -> Params:
    return jax.grad(mean_loss)(params, x[0], y[0])


def meta(params: Params, x: jax.Array, y: jax.Array) -> Params:
    """Return (I − α∇²f(w; D_h)) ∇f(w − α∇f(w; D_in); D_o)."""
    gradient = jax.grad(mean_loss)
    inner = gradient(params, x[0], y[0])
    outer = gradient([w - work.ALPHA * g for w, g in zip(params, inner, strict=True)], x[1], y[1])
    curvature = jax.jvp(lambda w: gradient(w, x[2], y[2]), (params,), (outer,))[1]
    return [g - work.ALPHA * h for g, h in zip(outer, curvature, strict=True)]


@partial(jax.jit, static_argnames=("rounds", "exact"), donate_argnames="params")
def play(params: Params, key: jax.Array, x: jax.Array, y: jax.Array, *, rounds: int, exact: bool) -> Params:
    def job(params: Params, key: jax.Array, ue: jax.Array) -> Params:
        at = jax.random.randint(key, (3 if exact else 1, work.BATCH), 0, work.SAMPLES)
        return (meta if exact else plain)(params, x[ue, at], y[ue, at])

    def round_(k: jax.Array, params: Params) -> Params:
        chosen, noise = jax.random.split(jax.random.fold_in(key, k))
        ues = jax.random.choice(chosen, work.UES, (work.QUORUM,), replace=False)
        jobs = jax.vmap(partial(job, params))(jax.random.split(noise, work.QUORUM), ues)
        return [w - work.BETA * g.mean(axis=0) for w, g in zip(params, jobs, strict=True)]

    return jax.lax.fori_loop(0, rounds, round_, params)


def initial(seed: int) -> Params:
    random, sizes = np.random.default_rng(seed), (work.FEATURES, work.HIDDEN, work.CLASSES)
    layers = [random.uniform(-1, 1, (n + 1, m)) / np.sqrt(n) for n, m in pairwise(sizes)]
    return [jnp.asarray(w, jnp.float32) for layer in layers for w in (layer[:-1], layer[-1])]


def main() -> None:
    given = work.options()
    x, y = map(jnp.asarray, work.data(given.seed))
    params, ready = initial(given.seed), False

    def rounds_of(count: int) -> None:
        nonlocal params, ready
        how = partial(play, x=x, y=y, exact=given.exact)
        params = jax.block_until_ready(how(params, jax.random.key(count), rounds=count))
        if not ready:  # the longer loop is a different program; compile it by running it on a copy
            ready = True
            jax.block_until_ready(how(jax.tree.map(jnp.copy, params), jax.random.key(0), rounds=given.rounds))

    def weights() -> list[np.ndarray]:
        return [np.asarray(w) for w in params]

    name = "bare JAX loop, exact Hessian" if given.exact else "bare JAX loop"
    work.measure(name, ["jax"], rounds_of, weights, given.rounds, given.seed)


if __name__ == "__main__":
    main()
