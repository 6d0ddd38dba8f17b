# make demo and make test are all a newcomer types; each sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo federation test test-torch soak lint docs bench bench-gpu wheel clean

$(VENV)/.ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(VENV)/.ready
	$(BIN)/hush compare fedavg dp-fedavg fed-smp-top-k --data digits --out runs/demo-$$(date +%Y%m%d-%H%M%S)

# a real federation on this machine: three clients, TLS, a secure sum, and one client that is killed and comes back
federation: $(VENV)/.ready
	$(BIN)/python examples/federation/demo.py

test: lint
	$(BIN)/python -m pytest -n 2

# the same tests with another PyTorch, in an environment of its own: make test-torch TORCH=2.6.0 (the oldest that is promised)
TORCH ?= 2.6.0
test-torch:
	$(PYTHON) -m venv .venv-$(TORCH)
	.venv-$(TORCH)/bin/pip install --quiet --disable-pip-version-check torch==$(TORCH)
	grep -v '^torch==\|^sympy==\|^#' requirements.lock > .venv-$(TORCH)/rest.txt
	.venv-$(TORCH)/bin/pip install --quiet --disable-pip-version-check --no-deps -r .venv-$(TORCH)/rest.txt
	.venv-$(TORCH)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	.venv-$(TORCH)/bin/python -m pytest -n 2

# what takes too long for every change: runs and federations killed at random, fifty clients over Flower, bad networks (as root)
soak: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 -rP soak

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.ready
	$(BIN)/pdoc --output-directory site hush

bench: $(VENV)/.ready
	$(BIN)/hush bench simulation
	$(BIN)/python bench/noise.py
	$(BIN)/python bench/accounting.py

# what the docs say of a GPU; cells that bench/measured holds are not computed again (HUSH_DATA: mnist/ and cifar10/)
bench-gpu: $(VENV)/.ready
	$(BIN)/python bench/sketch_speed.py --device cuda --clients 100
	$(BIN)/python bench/convolutions.py --device cuda
	$(BIN)/python bench/dpsfl_figures.py --device cuda --jobs 3
	$(BIN)/python bench/blur_lus_tables.py table2 --device cuda --jobs 6
	$(BIN)/python bench/blur_lus_tables.py figure2 --device cuda
	$(BIN)/python bench/blur_lus_tables.py table3 --device cuda --jobs 6

wheel: $(VENV)/.ready
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) .venv-* build dist .mypy_cache .ruff_cache .hypothesis
