#!/usr/bin/env bash
# Builds the packages of a commit twice, in different folders and without a compiler cache, and compares them byte by byte.
#   scripts/check_reproducible.sh [COMMIT]     (HEAD)
#   TANDEM_CUDA=ON|OFF (OFF), JOBS=N, TMPDIR: the folder for both builds, 2 GB
# Exit codes: 0 equal, 1 different or not built, 2 usage.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
commit=$(git rev-parse --verify --quiet "${1:-HEAD}^{commit}") || { echo "check_reproducible.sh: no commit ${1:-HEAD}" >&2; exit 2; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/reproducible.XXXXXX")
trap 'rm -rf "$folder"' EXIT
export CCACHE_DISABLE=1 TANDEM_CUDA=${TANDEM_CUDA:-OFF}

build() {  # folder, then environment
  local source=$1
  shift
  git clone --quiet --no-local --no-checkout . "$source"
  git -C "$source" checkout --quiet --detach "$commit"
  (cd "$source" && umask "${umask_of_build:-022}" && env "$@" make package) || exit 1
}
# What may differ between two machines: the folder, its length, the time, the language, the time zone, the rights of new files.
build "$folder/one" LC_ALL=C TZ=UTC
umask_of_build=027 build "$folder/a/longer/path/two" LC_ALL=C.UTF-8 TZ=Asia/Tokyo

different=0
for file in "$folder"/one/build-package/{*.deb,*.tar.gz,*.cdx.json,bin/portable/tandem}; do
  other=$folder/a/longer/path/two/${file#"$folder/one/"}
  if cmp "$file" "$other"; then
    echo "equal: $(sha256sum "$file" | cut -c1-64) $(basename "$file")"
  else
    different=1
  fi
done
exit $different
