# Puts the gateway on this system (as root), or into an image: make install DESTDIR=/path/of/image PREFIX=/usr
# packaging/README.md says what lands where.
PREFIX ?= /usr/local
DESTDIR ?=
# Another lock of runtimes, and an interpreter that has pip, hatchling and shtab where making one is not wanted
LOCK ?= requirements/runtime.txt
TOOLS ?=
INSTALL := packaging/install.py

# Release and architecture of the Debian packages: bookworm, jammy, noble or trixie; amd64 or arm64
SUITE ?= bookworm
ARCH ?= amd64

# Packages in the container image, if not those of packaging/image.py: ours, and those of Debian that it needs too
PARTS ?=

# Folder of the apt repository, and fingerprints of the keys that gpg signs it and releases with
REPO ?= dist/apt
KEY ?=

# Options of packaging/release.py
RELEASE ?=

.PHONY: install uninstall deb image apt-repo release lock-build debian-boot debian-arm64

install: ## put the gateway, its unit and its configuration in place (as root; DESTDIR=, PREFIX=)
	@umask 022 && $(PYTHON) -B $(INSTALL) install --destdir "$(DESTDIR)" --prefix "$(PREFIX)" --python "$(PYTHON)" --lock "$(LOCK)" \
		$(if $(TOOLS),--tools "$(TOOLS)")

uninstall: ## take it away again; state and a changed configuration stay
	@$(PYTHON) -B $(INSTALL) uninstall --destdir "$(DESTDIR)" --prefix "$(PREFIX)"

deb: $(VENV)/.test ## Debian packages in dist/, for SUITE=bookworm, jammy, noble or trixie and ARCH=amd64 or arm64
	@packaging/debian-packages debhelper dpkg-dev zstd
	@$(BIN)/python -B packaging/deb.py --suite $(SUITE) --arch $(ARCH)

image: ## container image in build/image/, of the packages PARTS="edge-gateway …" or edge-fleet, for ARCH=amd64 or arm64
	@packaging/debian-packages mmdebstrap debian-archive-keyring
	@$(MAKE) --no-print-directory deb SUITE=trixie
	@$(BIN)/python -B packaging/image.py --arch $(ARCH) $(PARTS)

apt-repo: ## put the packages of dist/ into a signed apt repository: KEY=FINGERPRINT, REPO=dist/apt
	@packaging/debian-packages reprepro gnupg
	@packaging/apt-repo dist "$(REPO)" $(KEY)

release: $(VENV)/.test ## check, build, sign and tag a version, upload nothing: KEY=FINGERPRINT, RELEASE='--help' for options
	@packaging/debian-packages debhelper dpkg-dev zstd gnupg mmdebstrap debian-archive-keyring
	@$(BIN)/python -B packaging/release.py $(addprefix --key ,$(KEY)) $(RELEASE)

lock-build: $(VENV)/.test ## compile the lock of what builds the wheel anew
	@printf 'hatchling>=1.27\nshtab>=1.13\n' | $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
		--no-header -c requirements/test.txt -o packaging/build.txt -

# The test that boots the unit needs systemd-nspawn.
test-long: debian-boot
debian-boot:
	@packaging/debian-packages systemd-container mmdebstrap debian-archive-keyring debhelper dpkg-dev zstd reprepro gnupg man-db \
		umoci skopeo runc iproute2 binutils qemu-system-x86 e2fsprogs

# The test of the packages on an emulated arm64 machine needs qemu's user mode and a Debian for it.
test-long: debian-arm64
debian-arm64: debian-boot
	@packaging/debian-packages qemu-user-static binfmt-support arch-test
