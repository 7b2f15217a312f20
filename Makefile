# What one does here every day. `make` alone lists it. The commands run in the environment that is
# active; CONTRIBUTING.md says how to make one.
.DEFAULT_GOAL := help
.PHONY: help setup fast test lint format generate docs report lowest clean

PYTHON ?= python

help:  ## This list
	@awk -F ':.*  ## ' '/^[a-z]+:.*  ## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Install the project, what its tests and its documents need into the active environment
	pip install -c constraints.txt -e ".[test,docs]"

fast:  ## Tests of every room without whole studies: some two minutes on two cores
	$(PYTHON) -m pytest -m "not slow and not workflow"

test:  ## All tests
	$(PYTHON) -m pytest

lint:  ## Style, types, and whether generated files are up to date; changes nothing
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	snakemake --lint
	mypy
	$(PYTHON) -m schemas.generate --check

format:  ## Bring Python and Snakemake files into form
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

generate:  ## Write anew what is made from the schemas
	$(PYTHON) -m schemas.generate

docs:  ## The documents as a site: build/site/index.html
	mkdocs build --strict

report:  ## The default study: results/report.html
	snakemake --cores all results/report.html

lowest:  ## The fast tests with the lowest versions that pyproject.toml allows
	.ci/lowest

clean:  ## Remove what tests and builds leave; results stay
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
