#!/bin/sh
# The whole test suite: `make test`.
#   1. release build with -Werror, all tests
#   2. the same unit and fuzz-replay tests under AddressSanitizer and UBSan
#   3. clang, when it is there: everything compiles with -Werror
# Models that tests use are generated; SmolLM2 is fetched once into the user's cache, and Gemma 3
# 270M too if BATON_TEST_GEMMA is set.
set -eu
cd "$(dirname "$0")/.."
jobs=$(getconf _NPROCESSORS_ONLN)
begin=$(date +%s)
step() { printf '\n== %s (%s s)\n' "$*" "$(($(date +%s) - begin))"; }

build() {   # preset [cmake options]
    preset=$1
    shift
    mkdir -p build
    cmake --preset "$preset" "$@" >"build/$preset.log" 2>&1 || { cat "build/$preset.log"; exit 1; }
    cmake --build "build/$preset" -j "$jobs"
}

step "models"
if model=$(tools/get-model.sh); then
    BATON_MODELS_DIR=$(dirname "$model")
    export BATON_MODELS_DIR
    [ -z "${BATON_TEST_GEMMA:-}" ] || tools/get-model.sh gemma3 || echo "no Gemma: tests without it"
else
    echo "the real model could not be fetched: its tests will be skipped"
fi

step "release build"
build release

step "tests"
ctest --test-dir build/release --output-on-failure --timeout 900 -j "$jobs"

step "address and undefined-behaviour sanitizers"
build asan
ctest --test-dir build/asan --output-on-failure --timeout 900 -j "$jobs" -R '^(unit|fuzz|kernels)/'

if command -v clang >/dev/null; then
    step "clang"
    build clang
fi
step "all passed"
