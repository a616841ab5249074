"""What these tests start compiles as they do: sooner, with little optimisation."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def sooner_compiled():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        yield
