"""Are compiled loops kept where they should be, and nowhere else?"""

import os
import subprocess
import sys

import pytest
from command_line import optimised

pytestmark = pytest.mark.slow

CODE = """
import sys, jax, jax.numpy as jnp
from perfeds2.learning.compiled import keep_compiled
print(keep_compiled())
from perfeds2.learning.models.mlp import MLP
f = jax.jit(lambda k: MLP((8, 8)).init(k))
print(float(f(jax.random.key(0))["dense1.weight"].sum()))
"""


def run(folder, **more):
    environment = (
        optimised() | {"PERFEDS2_COMPILE_CACHE": str(folder)} | more
    )  # what takes no time to compile is not kept
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_what_is_compiled_is_kept_and_does_no_harm_when_broken(tmp_path):
    folder = tmp_path / "xla"
    used, expected = run(folder)
    entries = [path for path in folder.rglob("*") if path.is_file()]
    assert used == str(folder)
    assert entries
    before = {path: path.read_bytes() for path in entries}
    assert run(folder) == [used, expected]
    assert {path: path.read_bytes() for path in entries} == before
    for path in entries:
        path.write_bytes(before[path][: len(before[path]) // 2])
    assert run(folder) == [used, expected]
    for path in entries:
        path.write_bytes(b"nonsense")
    assert run(folder) == [used, expected]


def test_nothing_is_kept_where_nothing_can_be_or_shall_be(tmp_path):
    (tmp_path / "file").write_text("")
    off, expected = run("off")
    assert off == "None"
    assert run(tmp_path / "file" / "folder") == ["None", expected]
    assert run(tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs")) == ["None", expected]
    assert not (tmp_path / "ours").exists()


def test_the_library_alone_keeps_nothing():
    code = "import jax, perfeds2; perfeds2.compare; print(jax.config.jax_compilation_cache_dir)"
    environment = {k: v for k, v in os.environ.items() if k != "PERFEDS2_COMPILE_CACHE"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "None", done.stderr
