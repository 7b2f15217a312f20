# Everyday commands; `make` alone lists them. They run in the active environment; CONTRIBUTING.md
# says how to create one.
.DEFAULT_GOAL := help
.PHONY: help setup fast test lint format generate docs report lowest clean

PYTHON ?= python

help:  ## Show this list
	@awk -F ':.*  ## ' '/^[a-z]+:.*  ## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Install the project with all that tests and documents need into the active environment
	pip install -c constraints.txt -e ".[test,docs]"

fast:  ## Run the fast tests, without whole studies: some 90 seconds on two cores
	$(PYTHON) -m pytest -m "not slow and not workflow"

test:  ## Run all tests
	$(PYTHON) -m pytest

lint:  ## Check style, types, and whether generated files are up to date; changes nothing
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	snakemake --lint
	mypy
	$(PYTHON) -m schemas.generate --check

format:  ## Format Python and Snakemake files
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

generate:  ## Write the files that are generated from the schemas
	$(PYTHON) -m schemas.generate

docs:  ## Build the documents as a site: build/site/index.html
	mkdocs build --strict

report:  ## Run the default study: results/report.html
	snakemake --cores all results/report.html

lowest:  ## Run the fast tests with the lowest versions that pyproject.toml allows
	.ci/lowest

clean:  ## Remove the leftovers of tests and builds; results stay
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
