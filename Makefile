# One word per job. CMake and ctest do the work; this file only calls them and prints what it calls.
#
#   make demo    install what is missing, build, fetch a small model, prefill it in another process
#   make up      the same, and stay: a page to chat with; Ctrl-C ends both processes
#   make test    the whole test suite
#   make build   only build: build/release/baton

BUILD := build/release
JOBS  ?= $(shell getconf _NPROCESSORS_ONLN)

.PHONY: all deps build model demo up test clean

all: build

deps:
	@tools/deps.sh

build: deps
	@mkdir -p build
	@cmake --preset release > $(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	cmake --build $(BUILD) --target baton -j $(JOBS)

model: deps
	@tools/get-model.sh > /dev/null

demo: build model
	@python3 tools/demo.py --baton $(BUILD)/baton --model "$$(tools/get-model.sh)"

up: build model
	@python3 tools/demo.py --baton $(BUILD)/baton --model "$$(tools/get-model.sh)" --stay

test: deps
	tools/test.sh

clean:
	rm -rf build
