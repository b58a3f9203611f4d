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
LAUNCHER := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
# TANDEM_CUDA=AUTO|ON|OFF and TANDEM_CUDA_ARCHS (e.g. 90), from the command line or the environment.
CUDA_OPTIONS := -DTANDEM_CUDA=$(or $(TANDEM_CUDA),AUTO) '-DTANDEM_CUDA_ARCHS=$(TANDEM_CUDA_ARCHS)'
SOURCES = $(shell git ls-files --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh')

# $(call configure,folder,options): configures the folder unless it is configured with the same options already.
configure = { [ "$$(cat $(1)/.options 2>/dev/null)" = "$(strip $(2))" ] && [ -f $(1)/CMakeCache.txt ]; } || \
  { mkdir -p $(1) && scripts/quietly.sh $(1)/configure.log cmake -S . -B $(1) $(call generator,$(1)) $(LAUNCHER) $(2) && \
    echo "$(strip $(2))" > $(1)/.options; }
# $(call build,folder,targets): shows the build tool's progress on a terminal, elsewhere only warnings and errors.
build = scripts/quietly.sh --progress $(1)/build.log cmake --build $(1) -j $(JOBS) $(if $(2),--target $(2))
# Once a target has configured the tests, later builds keep them.
tests_option = $(if $(wildcard $(BUILD)/.with-tests),-DTANDEM_TESTS=ON,-DTANDEM_TESTS=OFF)

has_cuda = grep -qs '^TANDEM_HAVE_CUDA:INTERNAL=ON' $(BUILD)/CMakeCache.txt

.PHONY: all help binary demo chat test test-gpu layers bench bench-gpu install asan fuzz fmt clean deps
all: binary  ## build build/bin/tandem (the default)
	@echo "Built $(TANDEM). Try: $(TANDEM) --help"

help:  ## list the targets
	@echo "make [target] [NAME=value]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Settings: BUILD=$(BUILD) JOBS=$(JOBS) PREFIX=$(PREFIX) MODEL=file.gguf PROMPT=\"...\" TOKENS=$(TOKENS)"

binary:
	@scripts/install_deps.sh
	@$(call configure,$(BUILD),$(tests_option) $(CUDA_OPTIONS))
	@$(call build,$(BUILD),tandem)

demo: binary  ## complete PROMPT (default "Once upon a time") with MODEL (default: the demo model)
	@$(TANDEM) run -m "$${MODEL:-$(DEMO_MODEL)}" -p "$${PROMPT:-Once upon a time}" -n $(TOKENS)

chat: binary  ## chat with MODEL (default: the demo model); PROMPT is the first message
	@$(TANDEM) chat -m "$${MODEL:-$(DEMO_MODEL)}" $${PROMPT:+-p "$$PROMPT"}

test:  ## build everything and run every test
	@scripts/install_deps.sh --tests
	@mkdir -p $(BUILD) && touch $(BUILD)/.with-tests
	@$(call configure,$(BUILD),-DTANDEM_TESTS=ON $(CUDA_OPTIONS))
	@$(call build,$(BUILD))
	@python3 scripts/check_layers.py --self-test
	@python3 scripts/check_layers.py
	@ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure --no-tests=error

test-gpu:  ## run the tests that need an NVIDIA GPU, then under compute-sanitizer (CHECK=memcheck: only that tool; CHECK=none: no tool)
	@scripts/install_deps.sh --tests
	@mkdir -p $(BUILD) && touch $(BUILD)/.with-tests
	@$(call configure,$(BUILD),-DTANDEM_TESTS=ON $(CUDA_OPTIONS))
	@if $(has_cuda); then $(call build,$(BUILD),gpu_tests); fi
	@python3 scripts/test_gpu.py $(BUILD) $(if $(CHECK),--check $(CHECK))

layers:  ## check that includes follow the layers, and the lengths of files
	@python3 scripts/check_layers.py

bench: binary  ## measure MODEL (default: random weights in the shape of TinyLlama, Q4_0)
	@model="$$MODEL"; \
	if [ -z "$$model" ]; then \
	  model=$(BUILD)/tinyllama-1.1b-Q4_0.gguf; \
	  [ -f $$model ] || $(TANDEM) synth tinyllama-1.1b --type Q4_0 -o $$model; \
	fi; \
	$(TANDEM) bench -m "$$model"

bench-gpu:  ## measure an NVIDIA GPU with random weights in the shape of Llama 3.1 8B (SCRATCH=folder keeps 40 GB of models)
	@scripts/install_deps.sh --tests
	@mkdir -p $(BUILD) && touch $(BUILD)/.with-tests
	@$(call configure,$(BUILD),-DTANDEM_TESTS=ON $(CUDA_OPTIONS))
	@if $(has_cuda); then $(call build,$(BUILD),tandem gpu_limits); fi
	@python3 scripts/bench_gpu.py $(BUILD) $(if $(SCRATCH),--scratch "$(SCRATCH)")

install: binary  ## install the program and the C library under PREFIX (honours DESTDIR)
	@$(call build,$(BUILD),libtandem)
	@cmake --install $(BUILD) --prefix "$(PREFIX)"

asan:  ## build in build-asan/ with address and undefined-behaviour sanitizers, run every test
	@scripts/install_deps.sh --tests
	@$(call configure,build-asan,-DTANDEM_TESTS=ON -DTANDEM_CUDA=OFF -DTANDEM_SANITIZE=address$(comma)undefined)
	@$(call build,build-asan)
	@ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  ctest --test-dir build-asan -j $(JOBS) --output-on-failure --no-tests=error
comma := ,

fuzz:  ## run each fuzz target for FUZZ_SECONDS under the sanitizers (builds in build-fuzz/)
	@scripts/install_deps.sh --fuzz
	@$(call configure,build-fuzz,-DTANDEM_TESTS=OFF -DTANDEM_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++)
	@$(call build,build-fuzz,fuzz)
	@scripts/run_fuzzers.sh build-fuzz $(FUZZ_SECONDS)

fmt:  ## format every source with clang-format
	@scripts/install_deps.sh --format
	@clang-format -i $(SOURCES)

deps:  ## install the packages that building and testing need
	@scripts/install_deps.sh --tests

clean:  ## remove all build output
	@rm -rf $(BUILD) build-asan build-fuzz
