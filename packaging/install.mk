# Puts the gateway on this system (as root), or into an image: make install DESTDIR=/path/of/image PREFIX=/usr
# packaging/README.md says what lands where.
PREFIX ?= /usr/local
DESTDIR ?=
LOCK ?= requirements/runtime.txt
INSTALL := packaging/install.py

.PHONY: install uninstall lock-build

install: ## put the gateway, its unit and its configuration in place (as root; DESTDIR=, PREFIX=)
	@umask 022 && $(PYTHON) -B $(INSTALL) install --destdir "$(DESTDIR)" --prefix "$(PREFIX)" --python "$(PYTHON)" --lock "$(LOCK)"

uninstall: ## take it away again; state and a changed configuration stay
	@$(PYTHON) -B $(INSTALL) uninstall --destdir "$(DESTDIR)" --prefix "$(PREFIX)"

lock-build: $(VENV)/.test ## compile the lock of what builds the wheel anew
	@echo 'hatchling>=1.27' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
		--no-header -c requirements/test.txt -o packaging/build.txt -
