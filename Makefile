# Everything below runs from .venv, which is made from requirements.lock; only Python >= 3.11 and make must be there.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: serve test lint types layers protos protos-check migrations-check bench lock clean

.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

serve: .venv/installed ## Run the server; without SUBSTRATE_DATABASE_URL it brings its own PostgreSQL.
	exec $(BIN)/substrate serve $(ARGS)

test: .venv/installed ## Run the whole suite against a real PostgreSQL and real gRPC servers.
	$(BIN)/python -m pytest -n 2 $(ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd protos && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code

types: .venv/installed
	$(BIN)/mypy

layers: .venv/installed
	$(BIN)/lint-imports

protos: .venv/installed ## Regenerate substrate/api from protos/.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
	  $$(cd protos && find substrate -name '*.proto' | sort | sed 's,^,protos/,')

protos-check: protos ## Fail when the committed code is not what the protos give.
	git diff --exit-code -- substrate/api
	test -z "$$(git status --porcelain -- substrate/api)"

migrations-check: .venv/installed ## Fail when the migrations and substrate/store/tables.py disagree.
	$(BIN)/python -m pytest -q tests/store/test_migrations.py

bench: .venv/installed ## Compare the server with bare gRPC handlers in one run.
	$(BIN)/python -m tests.perf.bench $(ARGS)

lock: ## Rewrite requirements.lock from pyproject.toml (needs uv on the path).
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group dev pyproject.toml -o requirements.lock

clean:
	rm -rf .venv
