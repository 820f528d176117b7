# Verbs over Meson. `make` builds build/tandem; `make serve` serves the bundled model; `make check` runs the tests.
BUILD ?= build
MODEL ?= nano
OP    ?=

PREFIX ?= /usr/local

.PHONY: all install uninstall deb build serve check check-all check-arm64 check-kernels bench-kernels bench bench-drafts verify verify-formats debug tsan faults fuzz lint format clean setup

all: build

setup:
	@scripts/setup

$(BUILD)/build.ninja: | setup
	@meson setup $(BUILD) -Dtests=auto >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@mv $(BUILD).log $(BUILD)/setup.log

build: setup $(BUILD)/build.ninja
	@out=$$(ninja -C $(BUILD) --quiet tandem) || { echo "$$out"; exit 1; }

# DESTDIR and PREFIX as usual; what was installed is written down in build/, for uninstall.
install: build
	@ninja -C $(BUILD) --quiet docs/tandem.1 docs/tandem >/dev/null
	@meson setup --reconfigure $(BUILD) -Dprefix=$(PREFIX) >/dev/null
	@DESTDIR=$(DESTDIR) meson install -C $(BUILD) --no-rebuild --quiet

uninstall:
	@ninja -C $(BUILD) --quiet uninstall >/dev/null

deb: build
	@ninja -C $(BUILD) --quiet docs/tandem.1 docs/tandem >/dev/null
	@scripts/deb $(BUILD)

serve: build
	@exec $(BUILD)/tandem serve $(MODEL)

check:
	@scripts/check

check-all:
	@scripts/check all

# The program for 64-bit Arm, its tests under qemu. Needs a Debian machine; takes an hour or so.
check-arm64:
	@scripts/check_arm64

check-kernels: build
	@ninja -C $(BUILD) --quiet && meson test -C $(BUILD) --suite kernels --print-errorlogs $(addprefix check_,$(OP))

bench-kernels: build
	@ninja -C $(BUILD) --quiet && for t in $(if $(OP),$(BUILD)/tests/kernels/check_$(OP),$(wildcard $(BUILD)/tests/kernels/check_*)); do \
	    [ -d $$t ] || $$t --bench; done

bench: build
	@$(BUILD)/tandem bench models/shapes/qwen3-0.6b --load-format dummy

# Drafting measured: the bundled model by content class; Qwen3-0.6B's shape with given acceptance by depth.
bench-drafts: build
	@$(BUILD)/tandem bench nano
	@$(BUILD)/tandem bench models/shapes/qwen3-0.6b --load-format dummy \
	    --synthetic-acceptance 0.93,0.90,0.87,0.84,0.82,0.80,0.78,0.76,0.75

verify: build
	@$(BUILD)/tandem verify nano && $(BUILD)/tandem verify nano-plain

# Sanitizer builds beside the release build.
debug:
	@scripts/setup tests
	@[ -f build-debug/build.ninja ] || meson setup build-debug -Dbuildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false >/dev/null
	@ninja -C build-debug --quiet

tsan:
	@scripts/setup tests
	@[ -f build-tsan/build.ninja ] || meson setup build-tsan -Dbuildtype=debugoptimized -Db_sanitize=thread -Db_lundef=false >/dev/null
	@ninja -C build-tsan --quiet

# Test build in which one-ulp faults can be planted (TANDEM_FAULT=linear ...).
faults:
	@[ -f build-faults/build.ninja ] || meson setup build-faults -Dfaults=true -Dtests=disabled >/dev/null
	@ninja -C build-faults --quiet

# Every stored format of weights: quantised bundled and random models, oracle and own drafters.
verify-formats:
	@scripts/setup tests
	@[ -f build/build.ninja ] || meson setup build >/dev/null
	@meson configure build -Dtests=enabled >/dev/null
	@ninja -C build --quiet
	@tests/formats/verify_formats

# Parsers under libFuzzer, a minute each, then once more with a planted fault each. Needs clang.
fuzz:
	@scripts/fuzz
	@scripts/fuzz --planted

lint:
	@scripts/lint

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	@rm -rf build build-debug build-tsan build-faults build-fuzz
