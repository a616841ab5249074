# Every target sets up .venv by itself, with plain python3 and pip, and does nothing twice.
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.installed
DEV := .venv/.installed-dev
EXTRAS := .venv/.installed-extras
FLOWER := build/flower/.installed
AXE := build/axe/package/axe.min.js
# Python compiles what is imported; pip would compile all files, which takes as long again as installing them.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# A file's tests share what is expensive: one process does them. The longest begin (tests/conftest.py).
# Two processes more than cores, because a fifth of the tests' time is waiting; quick tests hardly wait.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS = $(shell expr $(CORES) + 2)
PYTEST = $(BIN)/pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# With RETRY=1 a failed test is run once more, alone; if it passes then, it is listed.
AGAIN = $(if $(RETRY),$(BIN)/python .ci/again.py )

.PHONY: run extras extras-of-python test test-needs test-quick test-slow test-real mutate audit site wheel lint bench format clean

run: $(CORE)  ## the default comparison: six algorithms, one cell
	$(BIN)/perfeds2 compare

extras: extras-of-python $(AXE)  ## what some tests need besides: PyTorch, TensorBoard, MLflow, axe-core by npm, and Flower

extras-of-python: $(EXTRAS) $(FLOWER)

test: $(DEV)  ## the whole test suite; what needs a missing extra or program is skipped; RETRY=1 repeats failed tests once
	$(AGAIN)$(PYTEST)

test-needs: extras  ## only the tests that need an extra or a program; one that is missing fails
	$(AGAIN)$(PYTEST) -m needs --all-there $$($(BIN)/python tests/needs.py)

test-real: $(DEV)  ## all tests, nightly: with os.fsync, drawn figures and the optimisation that users get
	PERFEDS2_AS_USERS=1 $(AGAIN)$(PYTEST) --timeout 1800

test-quick: WORKERS = $(CORES)
test-quick: $(DEV)  ## what to run while coding: all but what compiles much or starts processes; a minute on 2 cores, 25 s more with nothing compiled
	$(PYTEST) -m "not slow"

test-slow: $(DEV)  ## hostile input by the thousand, twenty kills of each command; minutes
	PERFEDS2_HOSTILE_INPUTS=1000 PERFEDS2_KILLS=20 $(BIN)/pytest tests/reliability -n auto --maxprocesses 4 \
		-k "hostile_files or hostile_specs or killed_commands"

BASE ?= HEAD~1
mutate: $(DEV)  ## break the code in small ways, one at a time: by a list, and on the lines changed since BASE
	$(BIN)/python tests/mutate.py --base $(BASE)

audit:  ## known vulnerabilities of what we depend on, where the network permits
	$(PYTHON) .ci/audit.py

wheel: $(DEV)  ## what would be released, in dist/, tried in empty environments of the other Pythons at hand
	$(BIN)/python .ci/wheel.py $(if $(EVERY),--every)

lint: $(DEV)  ## formatting, lint rules, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: $(DEV)  ## speed against bare loops, oracles and targets
	$(BIN)/python -m benchmarks

site: $(DEV)  ## the documents as a site, strictly: open build/site/index.html, offline
	$(BIN)/python docs/site/make.py build

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build

$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

$(DEV): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e '.[dev,mqtt,docs]'
	touch $(CORE) $@

# uv installs in a tenth of pip's time; pip does it where uv does not find the package index.
FAST = $(BIN)/uv pip install --quiet --python $(1) $(addprefix --find-links ,$(PIP_FIND_LINKS)) $(2) || \
	$(1) -m pip install --quiet --disable-pip-version-check --no-compile $(2)
# The index has PyTorch for CUDA, which needs 3 GB. Its CPU build is installed wherever pip is told of one (PIP_FIND_LINKS).
WITH_TORCH := -c constraints.txt -e '.[dev,mqtt,docs,tensorboard,mlflow,torch]'
WITH_TORCH_CPU := -c .venv/without-torch.txt -e '.[dev,mqtt,docs,tensorboard,mlflow]' torch==2.13.0+cpu
$(EXTRAS): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) uv
	grep -v '^torch==' constraints.txt >.venv/without-torch.txt
	$(call FAST,$(BIN)/python,$(WITH_TORCH_CPU)) || $(call FAST,$(BIN)/python,$(WITH_TORCH))
	touch $(CORE) $(DEV) $@

# Flower asks for older versions than users of perfeds2 get.
WITH_FLOWER := -c examples/flower/constraints.txt 'flwr[simulation]' -e .
$(FLOWER): pyproject.toml examples/flower/constraints.txt $(EXTRAS)
	test -x build/flower/bin/python || $(PYTHON) -m venv build/flower
	$(call FAST,build/flower/bin/python,$(WITH_FLOWER))
	touch $@

$(AXE):
	mkdir -p build/axe
	npm pack --silent --pack-destination build/axe axe-core@4.14.0
	tar -xzf build/axe/axe-core-4.14.0.tgz -C build/axe
	touch $@
