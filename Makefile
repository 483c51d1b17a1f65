# `make demo` and `make test` are all a newcomer needs; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all engines test-engines lint check format lock docs bench bench-log bench-replicas bench-faults \
  bench-streams bench-processes bench-soak bench-overload bench-pairs bench-peers bench-fleet test-peers study prfaas-study \
  audit sbom release console-picture chaos fuzz fuzz-mutants load clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.installed ## Create .venv with the locked dependencies

# The lock is complete: pip resolves nothing, so later releases in an index have no effect.
$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Cacheway needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked dependencies into $(VENV) (a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip check --quiet --disable-pip-version-check
	@touch $@

demo: setup ## Two replicas, four emulated engines, round robin against the default policy (90 s)
	@$(BIN)/cacheway demo

PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
PURE := tests/radix tests/policies
PURE_LOG := .pytest_cache/pure.log
JOBS ?= 3

# Only the pure core is traced for coverage, and only by its own tests: a tracer slows down all that starts processes.
# Its tests run beside the others, in one process. Each of the others' processes begins at another folder, so that tests
# that wait (integration) run beside tests that compute, and takes tests from the one that has most left when it is done.
define run-tests
	@status=0; mkdir -p $(dir $(PURE_LOG)); \
	$(PYTEST) $(1) --cov --cov-config=pyproject.toml -o cache_dir=.pytest_cache/pure $(PURE) >$(PURE_LOG) 2>&1 & pure=$$!; \
	$(PYTEST) $(1) --numprocesses $(JOBS) --dist worksteal $(PURE:%=--ignore=%) || status=1; \
	wait $$pure || status=1; cat $(PURE_LOG); \
	exit $$status
endef

test: setup ## The tests, with coverage of the pure core
	$(call run-tests,-m "not deep")

test-all: setup ## The deep ones too: chaos, fuzzing, studies, many more examples of each property
	$(call run-tests,--hypothesis-profile=deep)

engines: setup ## Install vLLM for CPUs beside the project, for test-engines (3 GB, 5 min, once)
	@$(BIN)/python -m loadtest.vllm install

test-engines: engines ## The suite on real engines: SHORT=1 for one model (4 min), all three otherwise (10 min)
	@$(if $(SHORT),CACHEWAY_ENGINES_SHORT=1) $(BIN)/python -m pytest tests/engines

test-peers: setup ## The suite of sglang-router, from its sdist, with its own command lines and workers (5 min)
	@$(BIN)/python -m loadtest.conformance $(if $(SUITE),--suite $(SUITE))

lint: setup ## Format, lint, types, import contracts and wording
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m deploy.language

check: lint test audit sbom site ## Everything CI checks, the audit of what is locked, and its bill of materials

audit: setup ## Look locked packages up in the advisory database (STRICT=1 fails if it cannot)
	@$(BIN)/python -m deploy.supply_chain audit $(if $(STRICT),--strict)

sbom: setup ## Write sbom.json (CycloneDX) from the lock
	@$(BIN)/python -m deploy.supply_chain sbom

release: setup ## Build wheel, sdist, image context, bill of materials and checksums of the newest commit into dist/
	@$(if $(CACHEWAY_REPOSITORY_URL),CACHEWAY_REPOSITORY_URL=$(CACHEWAY_REPOSITORY_URL)) $(BIN)/python -m deploy.release

console-picture: setup ## The console's picture in docs/, from a run under load (7 min; needs Chromium)
	@$(BIN)/python -m loadtest.console_picture --minutes 6

load: setup ## Load a gateway with locust: HOST=http://..., PRESET=smoke|steady|spike|soak|overload
	@$(BIN)/locust -f loadtest/locustfile.py --headless --only-summary \
	  --host $(or $(HOST),http://127.0.0.1:30000) --preset $(or $(PRESET),smoke)

chaos: setup ## Half an hour of seeded faults under load; the status is 1 if a promise was broken
	@$(BIN)/python -m loadtest.chaos --minutes 30 --seed $(or $(SEED),7) --report chaos.html

fuzz: setup ## Hostile inputs of all kinds against real gateways: SECONDS=180 SEED=..., ONLY=CASE plays one again
	@$(BIN)/python -m loadtest.fuzz --seconds $(or $(SECONDS),180) \
	  $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

fuzz-mutants: setup ## Take mends out of the gateway, one by one, and see that the fuzzer finds it (10 min)
	@$(BIN)/python -m loadtest.fuzz.mutants

format: setup ## Format the code and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --quiet

lock: ## Resolve the dependencies again: everything, and what the image needs (needs uv)
	@$(COMPILE) --all-extras --output-file requirements.lock pyproject.toml requirements-build.in
	@$(COMPILE) --extra embedded --extra kubernetes --extra kv-events --extra picker --extra tokenizers --extra tracing --constraints requirements.lock --output-file requirements-runtime.lock \
	  pyproject.toml requirements-build.in

docs: setup ## Write the generated parts of docs/ again
	@$(BIN)/cacheway config --reference > docs/configuration.md
	@$(BIN)/cacheway config --metrics-reference > docs/metrics.md
	@$(BIN)/cacheway config --peers-reference > docs/flags-of-other-routers.md
	@$(BIN)/python -m deploy.write

site: setup ## Build the documentation's site into build/site; it fails on a link or an anchor that leads nowhere
	@$(BIN)/python -m deploy.website

bench: setup ## CPU cost of parsing, of the tree, of a decision, of a request, of the queue and of snapshots
	@$(BIN)/python -m loadtest.bench.tree
	@$(BIN)/python -m loadtest.bench.tree --parsing
	@$(BIN)/python -m loadtest.bench.decision
	@$(BIN)/python -m loadtest.bench.request
	@$(BIN)/python -m loadtest.bench.decision --queue
	@$(BIN)/python -m loadtest.bench.snapshots

bench-log: setup ## Shared log: CPU, bytes and lag per request of the fleet, then a soak of its sizes (10 min)
	@$(BIN)/python -m loadtest.bench.log_requests
	@$(BIN)/python -m loadtest.bench.log --duration-s 300

bench-replicas: setup ## Hit rate of eight replicas beside one (10 min)
	@$(BIN)/python -m loadtest.bench.replicas

bench-faults: setup ## Faults of Valkey and of replicas under load: answers, affinity and recovery of each act (10 min)
	@$(BIN)/python -m loadtest.chaos --minutes 10 --only "redis,replica"

bench-streams: setup ## 10,000 slow streams on one process, 2,000 fast ones on two (5 min)
	@$(BIN)/python -m loadtest.bench.serving streams
	@$(BIN)/python -m loadtest.bench.serving streams --streams 2000 --gap-s 0.02 --chunks 1500 --processes 2

bench-processes: setup ## Requests per CPU-second of one process, and of two on one port (4 min)
	@$(BIN)/python -m loadtest.bench.serving processes

bench-soak: setup ## Memory under constant load (30 min)
	@$(BIN)/python -m loadtest.bench.serving soak

bench-overload: setup ## Four replicas at three times their capacity, then again with failures (6 min)
	@$(BIN)/python -m loadtest.chaos overload
	@$(BIN)/python -m loadtest.chaos overload --disaster

bench-pairs: setup ## Two sites with prefill and decode workers, some of which die (6 min)
	@$(BIN)/python -m loadtest.chaos sites
	@$(BIN)/python -m loadtest.bench.pairs --failures

bench-peers: setup ## CPU beside nginx and the Rust routers, written to docs/benchmarks/ (35 min)
	@$(BIN)/python -m loadtest.bench.peers

bench-fleet: setup ## Cacheway beside cache-aware routers: TTFT and hit rate on a fleet of sockets (55 min)
	@$(BIN)/python -m loadtest.bench.fleet

study: setup ## Simulate every policy and the queue on recorded traffic, and write docs/policy-study/ again (1 h)
	@$(BIN)/python -m loadtest.study
	@$(BIN)/python -m loadtest.study.queueing

prfaas-study: setup ## Simulate the case study of PrfaaS, and write docs/prfaas-study/ again (25 min)
	@$(BIN)/python -m loadtest.plan.prfaas --simulate --out docs/prfaas-study

clean: ## Remove what can be made again
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage dist sbom.json chaos.html cacheway-*.html
