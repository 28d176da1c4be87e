# What a person types is what CI runs. `make help` lists it.
.DEFAULT_GOAL := help
.PHONY: help env env-dev env-engines env-readers env-airflow34 run backfill up down status test test-core test-long docs check lock clean bench-env bench-sharding \
	bench-engines bench-planning bench-input bench-storage bench-orchestration bench-training bench-steps bench-monitoring bench-gpu bench-plugin bench-verdicts bench-advice bench-exhaustive bench-slow-server \
	bench-stage-shares bench-tables \
	bench-forms bench-intervals bench-promotion bench-served-pixels bench-year demo-gcs docker-up \
	docker-check docker-down

VENV_PYTHON := .venv/bin/python
AIRFLOW := $(VENV_PYTHON) -m scripts.airflow
# As variables of the shell, not of make: a path with spaces or a JSON object with quotes arrives as it was typed.
export PYTHON CUDA SOURCE TABLE LABEL PARAMS BENCH FROM TO REPROCESS DAG RECORD

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: ## create .venv from requirements.txt (PYTHON=...: another Python, 3.11 to 3.13; CUDA=no: without GPU libraries)
	@scripts/make-env

env-dev: ## create .venv with the tools for tests and checks
	@scripts/make-env --dev

run: env ## turn images into a trained model, once; SOURCE=/path/to/images or TABLE=FILE LABEL=COLUMN, PARAMS='{"epochs": 3}'
	@$(AIRFLOW) run --source "$$SOURCE" --table "$$TABLE" --label "$$LABEL" --params "$$PARAMS"

backfill: env ## datasets of FROM=2026-01-01 TO=2026-01-31 (or hours: FROM=2026-01-01T00) SOURCE=/data/{date} (or TABLE, LABEL), then one training; REPROCESS=all, DAG=...
	@$(AIRFLOW) backfill --from "$$FROM" --to "$$TO" --source "$$SOURCE" --table "$$TABLE" --label "$$LABEL" \
		--params "$$PARAMS" --reprocess "$$REPROCESS" --dag "$$DAG"

demo-gcs: env ## run with buckets, against a server on this machine that simulates Google Cloud Storage
	@$(VENV_PYTHON) -m scripts.demo_gcs --params "$$PARAMS"

up: env ## start Airflow with its UI and keep it running
	@$(AIRFLOW) up

# Neither makes the environment: an Airflow that runs has one, perhaps in another folder.
WITHOUT_ENV = if [ -e "$${TENFOLD_HOME:-.airflow}/running.json" ]; then \
	echo 'An Airflow may be running, but this folder has no environment: use the command in its folder, or run `make env` first' >&2; exit 2; fi
down: ## stop Airflow
	@if [ -x $(VENV_PYTHON) ]; then $(AIRFLOW) down; else $(WITHOUT_ENV); echo 'Airflow is not running'; fi

status: ## list the processes of Airflow
	@if [ -x $(VENV_PYTHON) ]; then $(AIRFLOW) status; else $(WITHOUT_ENV); echo 'Airflow is not running. `make up` starts it'; exit 1; fi

docker-up: ## start Airflow as containers, with Postgres, Celery and two workers (settings: .env)
	@python3 -m scripts.compose.env >/dev/null
	docker compose build
	@docker compose run --rm --no-deps init python -m scripts.airflow check
	docker compose up --detach --wait --remove-orphans
	@python3 -m scripts.compose.env

docker-check: ## turn images into a trained model in these containers; SOURCE=/data/..., PARAMS as for `run`
	@docker compose run --rm --no-deps check --source "$$SOURCE" --params "$$PARAMS"

docker-down: ## stop the containers; their data stays in volumes
	docker compose --profile '*' down --remove-orphans

# Tests start dozens of processes: told to write no bytecode, each would compile all of TensorFlow for itself.
test test-core test-long: export PYTHONDONTWRITEBYTECODE :=

# CI has 2 cores, but many tests wait for the processes that they start, so more of them run at once.
# tests/distribution.py groups and orders the tests.
PYTEST_BESIDE := $(VENV_PYTHON) -m pytest --dist loadfile --no-loadscope-reorder

test: env-dev ## run the tests that a change needs, in about 5 minutes
	$(PYTEST_BESIDE) -n 4 -m "not core and not long and not alone"

test-core: env-dev env-engines ## run the long tests whose failure would lose data or stop a user, in about 5 minutes
	$(PYTEST_BESIDE) -n 4 -m core

# Only of the command line: some shells set GROUP to the group of the user.
LONG_GROUPS = $(if $(filter command line,$(origin GROUP)),$(GROUP))
test-long: env-dev ## run all other long tests; GROUP=airflow: one group, GROUP=changed: what changed; RECORD=yes
	$(VENV_PYTHON) -m scripts.long_tests $(LONG_GROUPS) --record "$$RECORD"

# Scripts of a browser may say `window`, which Deno has removed.
LINT_JAVASCRIPT := .venv/bin/deno lint --rules-exclude=no-window --rules-include=eqeqeq

docs: env-dev ## build the documentation site in docs/_build/html
	.venv/bin/sphinx-build -W --keep-going -q -b html docs docs/_build/html

check: env-dev docs ## check lint, format, spelling, layers, types, and the links of the documentation
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	git ls-files -z '*.js' | xargs -0r $(LINT_JAVASCRIPT)
	git ls-files -z | xargs -0r .venv/bin/codespell
	.venv/bin/lint-imports
	.venv/bin/mypy
	@$(VENV_PYTHON) -m scripts.long_tests --warn

# uv of the PATH, or the one that `make env` got from pip.
UV = $(or $(shell command -v uv),.tools/bin/uv)
LOCK = $(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --quiet
lock: ## compile the lock files from pyproject.toml (needs uv)
	$(LOCK) --extra airflow --extra training pyproject.toml -o requirements.txt
	grep -oE '^(imagehash|pillow|simplejpeg)==[0-9.]+' requirements.txt | \
		$(LOCK) --extra spark --extra beam --override - pyproject.toml -o $(ENGINES)
	echo apache-airflow-providers-apache-spark | $(LOCK) --no-deps -c requirements.txt - -o $(SPARK_PROVIDER)
	$(LOCK) --extra airflow -c requirements.txt pyproject.toml -o docker/requirements-airflow.txt
	$(LOCK) docker/uv.in -o docker/requirements-uv.txt
	$(LOCK) --group dev -c requirements.txt -o requirements-dev.txt
	$(LOCK) --group cuda -c requirements.txt -o requirements-cuda.txt
	$(LOCK) -c requirements.txt benchmarks/environments/storage.in -o benchmarks/environments/storage.txt
	for name in peers dali spdl litdata ray ffcv img2dataset models; do \
		$(LOCK) benchmarks/environments/$$name.in -o benchmarks/environments/$$name.txt || exit 1; done
	$(LOCK) -c requirements.txt --extra heic pyproject.toml tests/readers.in -o $(READERS)
	sed -n '/^[a-z]/{/^apache-airflow/!s/ \\$$//p}' requirements.txt requirements-dev.txt | \
		$(LOCK) --extra airflow --extra training --group dev -c - pyproject.toml tests/airflow34.in -o $(AIRFLOW34)

ENGINES := requirements-engines.txt
# Airflow's side of Spark, in a folder of its own, because Airflow itself is in .venv.
SPARK_PROVIDER := requirements-spark-provider.txt
env-engines: env .engines/airflow/installed ## create .engines with Spark and Beam (1 GB)

.engines/installed: $(ENGINES)
	$(call make-peers,.engines,$(ENGINES))

.engines/airflow/installed: $(SPARK_PROVIDER) .engines/installed
	if $(UV) --version >/dev/null 2>&1; then pip="$(UV) pip"; else pip=".engines/bin/python -m pip"; fi; \
		$$pip install --quiet --no-deps --require-hashes --target $(@D) -r $(SPARK_PROVIDER)
	touch $@

READERS := tests/requirements-readers.txt
env-readers: env .readers/installed ## create .readers with DALI, Grain and pillow-heif, for tests (1.4 GB)

.readers/installed: $(READERS)
	$(call make-peers,.readers,$(READERS))

AIRFLOW34 := tests/requirements-airflow34.txt
env-airflow34: env .airflow34/installed ## create .airflow34 with Airflow 3.4, for tests (3 GB)

.airflow34/installed: $(AIRFLOW34)
	$(call make-peers,.airflow34,$(AIRFLOW34))

bench-env: env .bench/peers/installed ## install other writers and readers for comparison (8 GB: one needs PyTorch with CUDA)

# A benchmark makes those of single packages when it needs them: benchmarks/harness/environments.py.
.bench/%/installed: benchmarks/environments/%.txt
	$(call make-peers,.bench/$*,$<)

# `--no-deps`, because the lock is complete, and its Pillow is newer than Beam allows.
define make-peers
	rm -rf $(1)
	if $(UV) --version >/dev/null 2>&1; then \
		$(UV) venv --quiet --python $(VENV_PYTHON) $(1) && \
		$(UV) pip install --quiet --python $(1)/bin/python --no-deps --require-hashes -r $(2); \
	else \
		$(VENV_PYTHON) -m venv $(1) && $(1)/bin/python -m pip install --quiet --no-deps --require-hashes -r $(2); \
	fi
	touch $(1)/installed
endef

# `eval`, so that a quoted word of BENCH may hold spaces.
bench = eval "$(VENV_PYTHON) -m $(1) $$BENCH"

bench-sharding: bench-env ## measure sharding, next to other writers and the limits; BENCH='--rounds 9 --images FOLDER'
	$(call bench,benchmarks.sharding)

bench-input: bench-env ## measure batches, next to other input pipelines and the limits; BENCH='--only tenfold --rates'
	$(call bench,benchmarks.input)

bench-storage: env .bench/storage/installed ## measure transfers, next to other clients and the limit; BENCH='--quick'
	$(call bench,benchmarks.storage)

bench-orchestration: env ## measure the time that Airflow adds to the work itself; BENCH='--imports'
	$(call bench,benchmarks.orchestration)

bench-year: env ## backfill a year of dates in an Airflow of its own, kill parts of it, and measure; BENCH='--dates 15'
	$(call bench,benchmarks.year)

bench-training: env ## measure training steps, next to Model.fit and a bare step; BENCH='--only overhead'
	$(call bench,benchmarks.training)

bench-steps: env ## measure steps of a small table and gaps between steps; BENCH='--beside ../another-checkout'
	$(call bench,benchmarks.steps)

bench-monitoring: env ## measure the CPU time of the monitor, by source, and its effect on a loop; BENCH='--only cost'
	$(call bench,benchmarks.monitoring)

bench-verdicts: env ## compare verdicts with known limits, alone and beside other programs; BENCH='--only slow --again'
	$(call bench,benchmarks.verdicts)

bench-advice: env ## compare predicted gains of changes with measured ones; BENCH='--only photographs'
	$(call bench,benchmarks.advice)

bench-exhaustive: env ## compare the change that the advice chooses with all others, in 12 jobs; BENCH='--only photographs'
	$(call bench,benchmarks.exhaustive)

bench-slow-server: env ## plant a slow server among two, ten times, and see whether it is named; BENCH='--only disk'
	$(call bench,benchmarks.slow_server)

bench-stage-shares: env ## compare the shares of the stages with what the input takes without each; BENCH='--jobs PNG'
	$(call bench,benchmarks.stage_shares)

# Needs nothing but PYTHON, which is .venv by default. It makes no environment.
bench-gpu: ## measure what only a GPU can show, in at most 10 minutes; PYTHON=/path/to/python with TensorFlow
	eval "\"\$${PYTHON:-$(VENV_PYTHON)}\" -m benchmarks.gpu $$BENCH"

bench-engines: env env-engines ## measure what Spark, Beam and multiprocessing add to the work itself; BENCH='--rounds 3'
	$(call bench,benchmarks.engines)

bench-planning: env ## measure planning, with simulated rows of millions of images; BENCH='--images 100000000'
	$(call bench,benchmarks.planning)

bench-tables: bench-env ## measure tables: into shards, out of them, training and memory; BENCH='--only read --rounds 3'
	$(call bench,benchmarks.tables)

bench-forms: bench-env ## measure many small images as files, Parquet, tar and zip; BENCH='--images 1000000 --peer'
	$(call bench,benchmarks.forms)

bench-intervals: env ## simulate how often the 95% intervals of a model's figures hold the true ones; BENCH='--quick'
	$(call bench,benchmarks.intervals)

bench-promotion: env ## simulate ten rounds of retraining by both rules of promotion; BENCH='--examples 40'
	$(call bench,benchmarks.promotion)

bench-served-pixels: env ## compare pixels of files as served and as trained; BENCH=FOLDER
	$(call bench,benchmarks.served_pixels)

bench-plugin: env-dev ## measure how fast a training opens in Airflow's UI, and the cost of ten open pages; BENCH='--quick'
	$(call bench,benchmarks.plugin)

clean: ## remove the environment and the caches of tools; data in workspace/ stays
	rm -rf .venv .engines .readers .airflow34 .tools .bench .airflow docs/_build tenfold.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
