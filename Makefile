# make            build build/heddle (installs what is missing first)
# make demo       train a small Llama on text the project makes itself, in a few minutes
# make test       all tests
# make format     clang-format over the sources          make lint   clang-tidy
# make asan tsan  the tests under sanitizers             make fuzz   every fuzz target for 60 s
# make test-gpu   what only a GPU can show: meshes over NCCL, a killed rank, compute-sanitizer
# make simgrid    the network simulator against SimGrid, which is installed first

BUILD ?= build
JOBS  ?= $(shell nproc)
CUDA  ?= AUTO

.PHONY: all setup configure demo test test-gpu simgrid asan tsan fuzz format lint clean

all: configure
	@cmake --build $(BUILD) --target heddle -j $(JOBS)

setup:
	@./scripts/setup.sh

# A first build of the program compiles each module as one file, in half of the time; tests, and whoever edits, file by
# file. A folder stays what it is, but tests and lint make it file by file.
UNITY = $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DHEDDLE_UNITY=ON)
test test-gpu lint: UNITY = -DHEDDLE_UNITY=OFF

configure: setup
	@cmake -S . -B $(BUILD) -G Ninja --log-level=WARNING -DHEDDLE_CUDA=$(CUDA) $(UNITY)

# Kernels take minutes to compile: without a GPU the demo does without them.
demo: CUDA = $(shell nvidia-smi -L >/dev/null 2>&1 && echo AUTO || echo OFF)
demo: all
	@./scripts/demo.sh $(BUILD)/heddle

# Reports are opened in a real browser.
test: configure
	@./scripts/setup.sh --browser
	@cmake --build $(BUILD) -j $(JOBS)
	@cd $(BUILD) && ctest --output-on-failure -j $(JOBS)

test-gpu: configure
	@cmake --build $(BUILD) --target heddle ops_cuda_test gpu_test nccl_ranks -j $(JOBS)
	@./scripts/test_gpu.sh $(BUILD)

simgrid:
	@./scripts/setup.sh --simgrid
	@$(MAKE) --no-print-directory configure UNITY=-DHEDDLE_UNITY=OFF
	@cmake --build $(BUILD) --target simgrid_test -j $(JOBS)
	@cd $(BUILD) && ctest --output-on-failure -L simgrid

asan tsan:
	@./scripts/setup.sh --browser
	@cmake --preset $@ --log-level=WARNING
	@cmake --build --preset $@ -j $(JOBS)
	@ctest --preset $@ -j $(JOBS)

fuzz:
	@./scripts/setup.sh --fuzz
	@cmake --preset fuzz --log-level=WARNING
	@cmake --build --preset fuzz -j $(JOBS)

format:
	@./scripts/setup.sh --lint
	@git ls-files '*.h' '*.cpp' '*.cu' | xargs clang-format-14 -i

lint: configure
	@./scripts/setup.sh --lint
	@git ls-files 'src/*.cpp' | xargs -P $(JOBS) -n 4 clang-tidy-14 -p $(BUILD) --quiet

clean:
	rm -rf build build-*
