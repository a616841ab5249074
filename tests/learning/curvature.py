"""Can a model be differentiated twice?"""

import jax
import jax.numpy as jnp
import numpy as np


def assert_hessian_is_what_differences_say(model, x, y, absolute):
    """∇²f·v by jvp of grad against (∇f(w + δv) − ∇f(w − δv)) / 2δ, in float64, in a random direction v."""
    params = {name: np.asarray(w, np.float64) for name, w in jax.jit(model.init)(jax.random.key(3)).items()}

    def loss(w):
        return -jax.nn.log_softmax(model(w, x))[jnp.arange(y.size), y].mean()

    draw = np.random.default_rng(4).normal
    direction = {name: draw(size=w.shape) for name, w in params.items()}
    curved = jax.jit(lambda w, direction: jax.jvp(jax.grad(loss), (w,), (direction,)))
    step = 1e-6

    def at(moved):
        weights = {name: w + moved * direction[name] for name, w in params.items()}
        return jax.tree.map(np.asarray, curved(weights, direction))

    product, ahead, behind = at(0.0)[1], at(step)[0], at(-step)[0]
    for name in params:
        np.testing.assert_allclose(product[name], (ahead[name] - behind[name]) / (2 * step), rtol=1e-5, atol=absolute)
    assert max(np.abs(h).max() for h in product.values()) > 1e-3
