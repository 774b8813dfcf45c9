#!/bin/sh
# Installs what Baton needs to be built and tested: Debian and Ubuntu (apt), macOS (Homebrew).
#   tools/deps.sh            build, demo and tests
#   tools/deps.sh --dev      also clang, clang-tidy, clang-format, fuzzing, cross compiler, qemu
#   tools/deps.sh --cross    also Debian's arm64 libraries, for the aarch64 preset (adds the foreign
#                            architecture arm64 to dpkg)
#   tools/deps.sh --check    only say what is missing; exit 1 if anything is
# Nothing is done, and no root is asked for, when all packages are there.
set -eu

debian="gcc make cmake ninja-build pkg-config libc6-dev libmicrohttpd-dev libjansson-dev \
libpcre2-dev libssl-dev libxxhash-dev libcmocka-dev python3 python3-numpy python3-pip python3-venv \
iproute2 procps ca-certificates"
debian_dev="clang clang-tidy clang-format libclang-rt-14-dev gcc-aarch64-linux-gnu \
libc6-dev-arm64-cross qemu-user iperf3 iptables"
debian_cross="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libmicrohttpd-dev:arm64 \
libjansson-dev:arm64 libpcre2-dev:arm64 libssl-dev:arm64 libxxhash-dev:arm64 libcmocka-dev:arm64"
homebrew="cmake ninja pkg-config libmicrohttpd jansson pcre2 openssl@3 xxhash cmocka python numpy"

mode=${1:-}
say() { printf '%s\n' "deps: $*"; }

missing_debian() {
    for p in "$@"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed' || printf '%s ' "$p"
    done
}

if [ "$(uname -s)" = Darwin ]; then
    command -v brew >/dev/null || { say "Homebrew is needed first: https://brew.sh"; exit 1; }
    missing=""
    for p in $homebrew; do
        brew list --versions "$p" >/dev/null 2>&1 || missing="$missing $p"
    done
    [ -z "$missing" ] && exit 0
    [ "$mode" = --check ] && { say "missing:$missing"; exit 1; }
    # shellcheck disable=SC2086
    exec brew install $missing
fi

if ! command -v apt-get >/dev/null; then
    say "this system has no apt-get; install the counterparts of: $debian"
    exit 1
fi
wanted=$debian
[ "$mode" = --dev ] && wanted="$debian $debian_dev"
[ "$mode" = --cross ] && wanted="$debian $debian_cross"
# shellcheck disable=SC2086
missing=$(missing_debian $wanted)
[ -z "$missing" ] && exit 0
[ "$mode" = --check ] && { say "missing: $missing"; exit 1; }

if [ "$(id -u)" = 0 ]; then
    root=""
elif command -v sudo >/dev/null; then
    root=sudo
else
    say "these packages are missing and need root: $missing"
    exit 1
fi
say "installing: $missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# apt with one line of progress: its own status descriptor, percent and what it is doing.
run_apt() {
    if [ -t 1 ]; then
        # shellcheck disable=SC2086
        $root env DEBIAN_FRONTEND=noninteractive apt-get -o APT::Status-Fd=3 "$@" 3>&1 >"$log" 2>&1 |
            awk -F: '{ printf "\r\033[Kdeps: %3d %% %s", $3, substr($4, 1, 60); fflush() } END { print "" }'
        # The pipe's status is awk's; what matters is whether the packages are there, checked below.
    else
        # shellcheck disable=SC2086
        $root env DEBIAN_FRONTEND=noninteractive apt-get "$@" >"$log" 2>&1 || true
    fi
}
if [ "$mode" = --cross ] && ! dpkg --print-foreign-architectures | grep -q arm64; then
    $root dpkg --add-architecture arm64
fi
say "reading the package lists"
run_apt update
say "downloading and unpacking (1 to 3 minutes)"
# shellcheck disable=SC2086
run_apt install -y --no-install-recommends $missing
# shellcheck disable=SC2086
left=$(missing_debian $wanted)
if [ -n "$left" ]; then
    tail -n 20 "$log" >&2
    say "apt-get could not install: $left"
    exit 1
fi
say "done"
