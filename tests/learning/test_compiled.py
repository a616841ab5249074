"""Are compiled loops kept where they should be, and nowhere else?"""

import json
import subprocess
import sys

import pytest
from command_line import optimised

pytestmark = pytest.mark.slow

CODE = """
kept = keep_compiled()
print(kept)
assert kept is None or jax.config.jax_persistent_cache_min_compile_time_secs < 0.5  # otherwise it is 1 s
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(jax.jit(lambda x: 3 * x)(1.5))
"""
SERVER = """
import gc, json, os, sys, warnings
gc.disable()
import jax
from perfeds2.learning.compiled import keep_compiled
warnings.filterwarnings("ignore", message="os.fork")
for line in sys.stdin:
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(f"ended {status}", flush=True)
        continue
    folder, code = json.loads(line)
    os.environ["PERFEDS2_COMPILE_CACHE"] = folder
    exec(code)
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture(scope="module")
def server():
    """A process that has imported everything and compiled nothing; it forks for each command."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", SERVER], env=optimised(), text=True, **pipes) as process:
        yield process
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.close()
        assert process.stderr.read() == ""


@pytest.fixture
def run(server):
    """What a command says that keeps compiled programs in a folder."""

    def ask(folder, code=CODE):
        server.stdin.write(json.dumps([str(folder), code]) + "\n")
        server.stdin.flush()
        said = [server.stdout.readline().strip()]
        while not said[-1].startswith("ended"):
            said.append(server.stdout.readline().strip())
        assert said.pop() == "ended 0"
        return said

    return ask


def test_what_is_compiled_is_kept_and_does_no_harm_when_broken(run, tmp_path):
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


def test_nothing_is_kept_where_nothing_can_be_or_shall_be(run, tmp_path):
    (tmp_path / "file").write_text("")
    assert run("off", "print(keep_compiled())") == ["None"]
    used, computed = run(tmp_path / "file" / "folder")
    assert used == "None"
    assert float(computed)


def test_the_library_alone_keeps_nothing_and_a_folder_of_jaxs_own_is_left_to_jax(run, tmp_path):
    code = """
import perfeds2
perfeds2.compare
print(jax.config.jax_compilation_cache_dir)
jax.config.update("jax_compilation_cache_dir", "theirs")  # as JAX_COMPILATION_CACHE_DIR does
print(keep_compiled(), jax.config.jax_compilation_cache_dir)
"""
    assert run(tmp_path / "ours", code) == ["None", "None theirs"]
    assert not (tmp_path / "ours").exists()
