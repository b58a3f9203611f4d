#!/usr/bin/env bash
# Prints the copyright file of a package: tandem's licence, and those of everything that is linked into the program.
#   scripts/copyright.sh LICENSE CUDA(ON|OFF) DEBIAN_PACKAGE...
# The licences of the libraries are those that their Debian packages install on the machine that builds.
set -euo pipefail
license=$1 cuda=$2
shift 2

section() { printf '\n%s\n%s\n\n' "$(printf '=%.0s' {1..80})" "$1"; }

echo "tandem"
echo
cat "$license"
for package in "$@"; do
  file=/usr/share/doc/$package/copyright
  if ! [ -f "$file" ]; then
    echo "copyright.sh: $file not found: is the package $package installed?" >&2
    exit 1
  fi
  section "Linked into the program: $package"
  cat "$file"
done
section "Linked into the program: the GCC runtime libraries (libstdc++, libgcc)"
for file in /usr/share/doc/libstdc++-*-dev/copyright /usr/share/doc/gcc-*-base/copyright; do
  if [ -f "$file" ]; then cat "$file"; break; fi
done
if [ "$cuda" = ON ]; then
  section "Linked into the program: the NVIDIA CUDA runtime (cudart)"
  echo "Redistributed under the NVIDIA CUDA Toolkit End User License Agreement, attachment A"
  echo "(https://docs.nvidia.com/cuda/eula/). Copyright (c) NVIDIA Corporation."
fi
