# `make images` and `make test` install what is missing first; docs/setup.md says what and where.
# ARGS goes to build-images (make images ARGS="--arch ppc64le"), PYTEST_ARGS to pytest.

ARGS ?=
PYTEST_ARGS ?=
BIN := .venv/bin
BENCHES := plan specs compile many formats packing native emulated cells verify defects ranks \
	registry pulls family pull_faults publish_faults worker_faults on_workers kills scale \
	mutants

.DEFAULT_GOAL := help
.PHONY: help images test test-long setup setup-test lint structure bench clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

images: setup  ## Build and prove the default selection of images
	$(BIN)/build-images $(ARGS)

test: setup-test  ## Check the source and run all tests, real engines included
	$(BIN)/ruff check
	$(BIN)/ruff format --check
ifeq ($(PYTEST_ARGS),)
	@$(BIN)/python ci/tests.py
else
	$(BIN)/pytest $(PYTEST_ARGS)
endif

test-long: setup-test  ## Run the campaigns in full: kills, faults, training, hpc-bench (an hour or more)
	@$(BIN)/python ci/tests.py --long

setup:  ## Install what `make images` needs and this machine lacks
	@ci/setup images

setup-test:  ## Install what `make test` needs and this machine lacks
	@ci/setup test

lint: setup-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict

structure: setup-test  ## Print the rooms of builder/, what they import, and the figures that may not grow
	@$(BIN)/python bench/structure.py

bench: setup-test images  ## Print the figures of the benchmarks; takes hours
	@for name in $(BENCHES); do echo "== bench/$$name.py" && $(BIN)/python bench/$$name.py || exit 1; done

clean:  ## Remove built images and caches from the project, not what was installed
	rm -rf out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
