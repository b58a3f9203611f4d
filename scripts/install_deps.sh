#!/usr/bin/env bash
# Installs the packages that tandem needs, through the system's package manager. If none is missing, prints nothing,
# changes nothing and needs no privileges.
#
#   scripts/install_deps.sh            compiler, CMake and libraries for build/bin/tandem
#   scripts/install_deps.sh --tests    also the packages for `make test`
#   scripts/install_deps.sh --package  also the packages for `make package`
#   scripts/install_deps.sh --fuzz     clang and its sanitizer runtime, for `make fuzz`; --tests has them too
#   scripts/install_deps.sh --format   also clang-format, for `make fmt`
#   scripts/install_deps.sh --dry-run  only print the missing packages
#
# Exit codes: 0 all packages are installed, 1 a package could not be installed, 2 usage.
# Never installs CUDA; the build finds nvcc if it is on the machine.
set -euo pipefail

tests=no package=no fuzz=no format=no dry_run=no
for arg in "$@"; do
  case "$arg" in
    --tests) tests=yes ;;
    --package) package=yes ;;
    --fuzz) fuzz=yes ;;
    --format) format=yes ;;
    --dry-run) dry_run=yes ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "install_deps.sh: unknown option $arg (try --help)" >&2; exit 2 ;;
  esac
done

missing=()
need_command() {  # package, then commands, one of which must exist
  local package=$1 command
  shift
  for command in "$@"; do
    if command -v "$command" >/dev/null 2>&1; then return; fi
  done
  missing+=("$package")
}
headers=()
need_header() { headers+=("$1:$2"); }  # package:header

need_command g++ g++ c++ clang++
need_command cmake cmake
need_command make ninja make
need_command pkg-config pkg-config
need_header libfmt-dev fmt/core.h
need_header libpcre2-dev pcre2.h
need_header libutf8proc-dev utf8proc.h
need_header libcli11-dev CLI/CLI.hpp
need_header nlohmann-json3-dev nlohmann/json.hpp
need_header libedit-dev histedit.h
need_header libmd4c-dev md4c.h
need_header liburing-dev liburing.h
need_header libmd-dev sha2.h
need_header libxxhash-dev xxhash.h
need_header libcurl4-openssl-dev curl/curl.h
if [ $tests = yes ] || [ $package = yes ]; then need_command python3 python3; fi
if [ $tests = yes ]; then
  need_header libgtest-dev gtest/gtest.h
  need_header libgmock-dev gmock/gmock.h
  need_header libvterm-dev vterm.h
  need_command libopenmpi-dev mpicxx
  need_command openmpi-bin mpirun
fi
if [ $tests = yes ] || [ $package = yes ]; then  # archives that libedit needs
  need_header libbsd-dev bsd/string.h
  need_header libmd-dev md5.h
  need_header libncurses-dev term.h
fi
if [ $fuzz = yes ] || [ $tests = yes ]; then
  need_command clang clang++
  # The fuzzer runtime is a separate package on some releases and part of clang on others.
  if ! ls "$(clang++ --print-runtime-dir 2>/dev/null)"/libclang_rt.fuzzer* >/dev/null 2>&1; then
    if apt-cache show libclang-rt-dev >/dev/null 2>&1; then missing+=(libclang-rt-dev); fi
  fi
fi
if [ $format = yes ]; then need_command clang-format clang-format; fi

# One run of the preprocessor finds all missing headers.
compiler=$(command -v g++ || command -v c++ || command -v clang++ || true)
if [ -z "$compiler" ]; then
  for item in "${headers[@]}"; do missing+=("${item%%:*}"); done
else
  probe=$(for item in "${headers[@]}"; do
    printf '#if !__has_include(<%s>)\n%s\n#endif\n' "${item#*:}" "${item%%:*}"
  done | sed '1i #define PCRE2_CODE_UNIT_WIDTH 8' | "$compiler" -std=c++20 -x c++ -E -P -)
  for package in $probe; do missing+=("$package"); done
fi

if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
if [ $dry_run = yes ]; then echo "${missing[*]}"; exit 0; fi

# Ninja is optional (CMake can use make); install it along with other packages.
if ! command -v ninja >/dev/null 2>&1; then missing+=(ninja-build); fi

as_root=""
if [ "$(id -u)" -ne 0 ]; then as_root="sudo "; fi
by_hand="${as_root}apt-get update && ${as_root}apt-get install -y --no-install-recommends ${missing[*]}"

give_up() {
  echo "tandem: $1" >&2
  echo "tandem: to install the missing packages, run:" >&2
  echo "  $by_hand" >&2
  exit 1
}

if ! command -v apt-get >/dev/null 2>&1; then
  echo "tandem: this system has no apt-get. Install these Debian packages, or your system's equivalents:" >&2
  echo "  ${missing[*]}" >&2
  exit 1
fi
sudo_command=()
if [ -n "$as_root" ]; then
  command -v sudo >/dev/null 2>&1 || give_up "packages are missing, and installing them needs root or sudo"
  sudo_command=(sudo)
  if ! [ -t 0 ]; then sudo_command=(sudo -n); fi  # no terminal to type a password
  "${sudo_command[@]}" true 2>/dev/null </dev/null || [ -t 0 ] || give_up "packages are missing, and sudo asks for a password"
fi

echo "Installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${sudo_command[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1
}
# Ignore a failing update (one of many sources may be unreachable), but not a failing install.
apt update || true
if ! apt install -y --no-install-recommends "${missing[@]}"; then
  tail -n 15 "$log" >&2
  give_up "apt-get could not install all packages"
fi
