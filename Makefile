# rankwise: what a developer does, in one word each. `make` alone says what there is.
#   make test ARGS="-k mark -x"      arguments for pytest
#   make test WORKERS=0              one test at a time
#   make demo PYTHON=/opt/python3.12/bin/python3

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types links docs bench environments venv clean

ARGS ?=
# Files of tests that run side by side: most tests wait more than they compute.
WORKERS ?= 3
# What the checkers look at, as far as it is there.
CODE := $(wildcard src drop-in tests scripts bench)
# The venv's programs come first, so that mpiexec is the MPI that was installed with rankwise.
IN_VENV = PATH="$(CURDIR)/$(1)/bin:$$PATH"
# Looked up only by the targets that need it. A failure has been explained on stderr by then.
find_python = python=$$(PYTHON="$(PYTHON)" sh scripts/find_python.sh) || exit 1

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

# The demo takes the developer's venv when there is one, else a small one of its own.
DEMO_VENV := $(if $(wildcard .venv/rankwise-environment.json),.venv,.venv-demo)

demo: $(if $(filter .venv-demo,$(DEMO_VENV)),.venv-demo/ready) ## Run a small example on 4 ranks, with an MPI from pip
	@$(call IN_VENV,$(DEMO_VENV)) $(DEMO_VENV)/bin/python examples/demo/demo.py

.venv-demo/ready: pyproject.toml drop-in/pyproject.toml
	@$(find_python); \
	echo "Making .venv-demo with rankwise and MPICH (once; some 15 s, 80 MB) ..."; \
	rm -rf .venv-demo && "$$python" -m venv .venv-demo && \
	.venv-demo/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[mpi]' --editable ./drop-in && \
	touch $@ || { echo "The demo's environment could not be made. Is the package index within reach of pip?" >&2; exit 1; }

test: environments ## Run all tests, on every MPI that this machine can have
	@$(call IN_VENV,.venv) .venv/bin/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder $(ARGS)

# What needs no other machine, no cluster and no second MPI.
UNITS := $(addprefix tests/,checks documents engine export launch metrics notify planning pytest_plugin reports stats store test_house.py)

check: lint ## Check style, types and the layout of the source, and run the unit tests: 3 minutes
	@$(find_python); "$$python" scripts/house.py --check
	@$(call IN_VENV,.venv) .venv/bin/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --quiet $(UNITS) $(ARGS)

environments: ## Make the virtual environments of the tests, and install Slurm, Grid Engine, a browser, sshd, Podman and a Linux that runs as a process, if that is possible
	@$(find_python); "$$python" scripts/environments.py && "$$python" scripts/cluster.py --install && "$$python" scripts/gridengine.py --install && "$$python" scripts/pbs_words.py --install && "$$python" scripts/browser.py --install && "$$python" scripts/sshd.py --install && "$$python" scripts/containers.py --install && "$$python" scripts/machines.py --install

venv:
	@$(find_python); "$$python" scripts/environments.py mpich

lint: venv links ## Check style, types, spelling and links
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	@$(MAKE) --no-print-directory types
	.venv/bin/codespell

# Apart for pre-commit, and without the venv above it: a hook must not remake the venv that it runs in.
types:
	.venv/bin/mypy $(CODE)

links:
	@$(find_python); "$$python" scripts/check_links.py

docs: links ## Make the site of the documentation: build/site
	@$(find_python); "$$python" scripts/environments.py docs
	@NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --strict --quiet
	@echo "The site is in build/site: open index.html, or, to search in it too, run"
	@echo "  python3 -m http.server --bind 127.0.0.1 --directory build/site"

bench: venv ## Measure speed (bench/)
	@$(call IN_VENV,.venv) .venv/bin/python -m bench $(ARGS)

clean: ## Remove everything that was made here
	rm -rf .venv .venvs .venv-demo build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
