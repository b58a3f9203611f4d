# A thin layer over CMake: installs missing packages, configures once and builds. `make help` lists all targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := all

BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
FUZZ_SECONDS ?= 300
TOKENS ?= 200
PROMPT ?=
MODEL ?=
# Literal values, `$` and quotes included; the shell gets them through the environment.
override MODEL := $(value MODEL)
override PROMPT := $(value PROMPT)
export MODEL PROMPT
DEMO_MODEL := models/tandem-demo-Q8_0.gguf

TANDEM := $(BUILD)/bin/tandem
# A build folder keeps the generator it was first configured with.
generator = $(if $(wildcard $(1)/CMakeCache.txt),,$(if $(shell command -v ninja),-G Ninja))
# One compiler cache then serves every checkout.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= true
LAUNCHER := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
# Nothing is installed with NO_INSTALL=1, e.g. where there is no network.
deps = $(if $(NO_INSTALL),true,scripts/install_deps.sh)
# From the command line or the environment (`make help`).
BUILD_OPTIONS := -DTANDEM_CUDA=$(or $(TANDEM_CUDA),AUTO) '-DTANDEM_CUDA_ARCHS=$(TANDEM_CUDA_ARCHS)' \
  -DTANDEM_QUICK_BUILD=$(or $(TANDEM_QUICK_BUILD),AUTO) -DTANDEM_CUDA_FAST_COMPILE=$(or $(TANDEM_CUDA_FAST_COMPILE),OFF)
SOURCES = $(shell git ls-files --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh')

# $(call configure,folder,options): configures the folder unless it is configured with the same options already.
configure = { [ "$$(cat $(1)/.options 2>/dev/null)" = "$(strip $(2))" ] && [ -f $(1)/CMakeCache.txt ]; } || \
  { mkdir -p $(1) && scripts/quietly.sh $(1)/configure.log cmake -S . -B $(1) $(call generator,$(1)) $(LAUNCHER) $(2) && \
    echo "$(strip $(2))" > $(1)/.options && sed -n 's/^-- tandem: /tandem: /p' $(1)/configure.log; }
# $(call build,folder,targets): shows the build tool's progress on a terminal, elsewhere only warnings and errors.
build = scripts/quietly.sh --progress $(1)/build.log cmake --build $(1) -j $(JOBS) $(if $(2),--target $(2))
# Once a target has configured the tests, later builds keep them.
tests_option = $(if $(wildcard $(BUILD)/.with-tests),-DTANDEM_TESTS=ON,-DTANDEM_TESTS=OFF)

# A second build, by clang, of the fuzz targets.
define build_fuzz
$(call configure,build-fuzz,-DTANDEM_TESTS=OFF -DTANDEM_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++); $(call build,build-fuzz,fuzz)
endef

has_fuzzer = grep -qs '^TANDEM_HAVE_FUZZER:INTERNAL=ON' $(BUILD)/CMakeCache.txt
has_cuda = grep -qs '^TANDEM_HAVE_CUDA:INTERNAL=ON' $(BUILD)/CMakeCache.txt

.PHONY: all help binary demo chat test test-gpu quick-check layers warnings failing-calls soak bench bench-gpu gpu-pack package install asan tsan fuzz fuzz-long fmt clean deps
all: binary  ## build build/bin/tandem (the default)
	@echo "Built $(TANDEM). Try: $(TANDEM) --help"

help:  ## list the targets
	@echo "make [target] [NAME=value]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Settings: BUILD=$(BUILD) JOBS=$(JOBS) PREFIX=$(PREFIX) MODEL=file.gguf PROMPT=\"...\" TOKENS=$(TOKENS) NO_INSTALL=1"
	@echo "          TANDEM_CUDA=AUTO|ON|OFF TANDEM_CUDA_ARCHS=90 (AUTO: with CUDA where nvcc and a GPU, or archs, are given)"
	@echo "          TANDEM_QUICK_BUILD=AUTO|ON|OFF (ON: folders as one source each; AUTO: ON but for builds with tests)"
	@echo "          TANDEM_CUDA_FAST_COMPILE=ON (kernels for GPUs compile fast and run slower)"

binary:
	@$(deps)
	@$(call configure,$(BUILD),$(tests_option) $(BUILD_OPTIONS))
	@$(call build,$(BUILD),tandem)

demo: binary  ## complete PROMPT (default "Once upon a time") with MODEL (default: the demo model)
	@$(TANDEM) run -m "$${MODEL:-$(DEMO_MODEL)}" -p "$${PROMPT:-Once upon a time}" -n $(TOKENS)

chat: binary  ## chat with MODEL (default: the demo model); PROMPT is the first message
	@$(TANDEM) chat -m "$${MODEL:-$(DEMO_MODEL)}" $${PROMPT:+-p "$$PROMPT"}

# With TANDEM_QUICK_BUILD=ON in less than half of the time to compile, if it is for one run.
test:  ## build everything and run every test
	@$(deps) --tests
	@mkdir -p $(BUILD) && touch $(BUILD)/.with-tests
	@$(call configure,$(BUILD),-DTANDEM_TESTS=ON $(BUILD_OPTIONS))
	@$(call build,$(BUILD))
	@if $(has_fuzzer); then $(build_fuzz); fi
	@python3 scripts/check_layers.py --self-test
	@python3 scripts/check_layers.py
	@ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure --no-tests=error

test-gpu:  ## run the tests that need an NVIDIA GPU, then under compute-sanitizer (SECTIONS=tests,memcheck: only these)
	@$(deps) --tests
	@mkdir -p $(BUILD) && touch $(BUILD)/.with-tests
	@$(call configure,$(BUILD),-DTANDEM_TESTS=ON $(BUILD_OPTIONS))
	@if $(has_cuda); then $(call build,$(BUILD),tandem gpu_tests); fi
	@python3 scripts/test_gpu.py $(BUILD) $(if $(SECTIONS),--sections $(SECTIONS))

# The tests of tests/stress, which are part of `make test`, in their long form.
stress = $(deps) --tests; mkdir -p $(BUILD); touch $(BUILD)/.with-tests; \
  $(call configure,$(BUILD),-DTANDEM_TESTS=ON $(BUILD_OPTIONS)); $(call build,$(BUILD),tandem stress_tests); \
  TANDEM_STRESS=all $(BUILD)/bin/stress_tests --gtest_brief=1
failing-calls:  ## fail every allocation and system call of each command once (hours)
	@$(stress) --gtest_filter='FailingCalls.*'
soak:  ## a chat of 10,000 turns and a batch of 100,000 lines that is killed: memory, files and texts stay the same
	@$(stress) --gtest_filter='*Soak*'

quick-check:  ## check that the folders compile as one source each, as with TANDEM_QUICK_BUILD=ON
	@python3 tests/packages/quick_build_test.py . $(BUILD) $(or $(CXX),c++)

layers:  ## check that includes follow the layers, and the lengths of files
	@python3 scripts/check_layers.py

# For instance COMPILERS="clang++-14 clang++-19". Minutes each; not part of `make test`, whose fuzz targets clang builds.
warnings:  ## parse every source with COMPILERS (default: clang++), fail on any warning
	@$(deps) --tests
	@$(call configure,build-warnings,-DTANDEM_TESTS=ON -DTANDEM_CUDA=OFF)
	@$(call build,build-warnings,translated_cuda)
	@scripts/check_warnings.py build-warnings $(or $(COMPILERS),clang++) --jobs $(JOBS)

bench: binary  ## measure MODEL (default: random weights in the shape of TinyLlama, Q4_0)
	@model="$$MODEL"; \
	if [ -z "$$model" ]; then \
	  model=$(BUILD)/tinyllama-1.1b-Q4_0.gguf; \
	  [ -f $$model ] || $(TANDEM) synth tinyllama-1.1b --type Q4_0 -o $$model; \
	fi; \
	$(TANDEM) bench -m "$$model"

bench-gpu:  ## measure an NVIDIA GPU with random weights in the shape of Llama 3.1 8B (SECTIONS=decode,prefill; SCRATCH=folder keeps 40 GB of models)
	@$(deps) --tests
	@mkdir -p $(BUILD) && touch $(BUILD)/.with-tests
	@$(call configure,$(BUILD),-DTANDEM_TESTS=ON $(BUILD_OPTIONS))
	@if $(has_cuda); then $(call build,$(BUILD),tandem gpu_limits); fi
	@python3 scripts/bench_gpu.py $(BUILD) $(if $(SECTIONS),--sections $(SECTIONS)) $(if $(SCRATCH),--scratch "$(SCRATCH)")

gpu-pack:  ## make build-gpu/tandem-gpu.tar.gz: all that a machine with a GPU needs to test and measure, without network
	@$(deps) --tests
	@$(call configure,build-gpu,-DTANDEM_TESTS=ON -DTANDEM_QUICK_BUILD=ON -DTANDEM_CUDA=ON '-DTANDEM_CUDA_ARCHS=$(or $(TANDEM_CUDA_ARCHS),90-real)')
	@$(call build,build-gpu,tandem_portable gpu_tests gpu_limits)
	@scripts/gpu_pack.py build-gpu

# With CUDA where nvcc is, for all common GPUs and not only those of this machine.
package:  ## make a .deb and a tarball in build-package/ that need nothing but the C library (with CUDA where nvcc is), with checksums and a list of components
	@$(deps) --package
	@$(call configure,build-package,-DTANDEM_TESTS=OFF -DTANDEM_HIDE_PATHS=ON -DTANDEM_CUDA=$(or $(TANDEM_CUDA),$(if $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null),ON,OFF)) '-DTANDEM_CUDA_ARCHS=$(or $(TANDEM_CUDA_ARCHS),common)')
	@$(call build,build-package,tandem_portable all)
	@cd build-package && rm -f *.deb *.tar.gz *.sha256 && ../scripts/quietly.sh package.log cpack
	@ls -1 build-package/*.deb build-package/*.tar.gz build-package/*.sha256 build-package/*.cdx.json

install: binary  ## install the program and the C library under PREFIX (honours DESTDIR)
	@$(call build,$(BUILD),libtandem)
	@cmake --install $(BUILD) --prefix "$(PREFIX)"

# Sanitized builds have no CUDA device, whose driver they do not support, and no software GPU, whose fibers switch stacks
# behind their back (tests/emulated/emulated.cmake). CXX=clang++-19 takes another compiler, for a folder that is not there yet.
asan:  ## build in build-asan/ with address and undefined-behaviour sanitizers, run every test
	@$(deps) --tests
	@$(call configure,build-asan,-DTANDEM_TESTS=ON -DTANDEM_CUDA=OFF -DTANDEM_SANITIZE=address$(comma)undefined)
	@$(call build,build-asan)
	@ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  LSAN_OPTIONS=suppressions=$(CURDIR)/tests/leaks.txt:print_suppressions=0 ctest --test-dir build-asan -j $(JOBS) --output-on-failure --no-tests=error
comma := ,

# Without the tests of products in one thread, which are most of its time.
tsan:  ## build in build-tsan/ with the thread sanitizer, run every test that has threads
	@$(deps) --tests
	@$(call configure,build-tsan,-DTANDEM_TESTS=ON -DTANDEM_CUDA=OFF -DTANDEM_SANITIZE=thread)
	@$(call build,build-tsan)
	@TSAN_OPTIONS=halt_on_error=1 ctest --test-dir build-tsan -j $(JOBS) -E '^Kernels/Linear\.' --output-on-failure --no-tests=error

fuzz:  ## run each fuzz target for FUZZ_SECONDS under the sanitizers (builds in build-fuzz/)
	@$(deps) --fuzz
	@$(build_fuzz)
	@scripts/fuzz.py explore build-fuzz --seconds $(FUZZ_SECONDS) --jobs $(JOBS)

fuzz-long:  ## run 10 million executions over all fuzz targets, print a table
	@$(deps) --fuzz
	@$(build_fuzz)
	@scripts/fuzz.py long build-fuzz --jobs $(JOBS)

fmt:  ## format every source with clang-format
	@$(deps) --format
	@clang-format -i $(SOURCES)

deps:  ## install the packages that building and testing need
	@$(deps) --tests

clean:  ## remove all build output
	@rm -rf $(BUILD) build-asan build-tsan build-warnings build-fuzz build-gpu build-package
