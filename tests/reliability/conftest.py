"""Commands in processes of their own, and one cache of compiled functions for all of them."""

from collections.abc import Iterator

import pytest
from killable_commands import Commands


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    base = tmp_path_factory.getbasetemp()
    everybodys = base.parent if base.name.startswith("popen-") else base  # with several workers, theirs together
    commands = Commands(
        tmp_path_factory.mktemp("said"),
        JAX_COMPILATION_CACHE_DIR=str(everybodys / "compiled"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )
    yield commands
    commands.close()
