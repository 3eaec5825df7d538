#!/usr/bin/env bash
# Installs the Debian packages the build needs and that are missing, and where nvcc is, fetches the headers of
# cudnn-frontend (from the vendor's Python wheel) into the user's cache. Does nothing when all are there.
#   setup.sh            what make and make demo need
#   setup.sh --fuzz     also clang, for make fuzz
#   setup.sh --lint     also clang-format and clang-tidy, for make format and make lint
#   setup.sh --simgrid  also SimGrid, which the tests of the network are compared with
#   setup.sh --browser  also Chromium, in which make test opens the reports
#   setup.sh --run      only what a built heddle needs to run
#   setup.sh --list     prints the packages that the other options name, and installs nothing
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache
  libopenblas0-openmp libdnnl2  # GEMM, loaded at run time
  libhwy-dev                    # SIMD with run-time dispatch
  libfmt-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev
  libpcre2-dev libxxhash-dev
  zlib1g-dev libzstd-dev liblz4-dev libsnappy-dev  # compressed data
  libopenmpi-dev openmpi-bin    # ranks under mpirun; optional at build and at run time
  libgtest-dev libgmock-dev libbenchmark-dev
  libzfp-dev                    # what the tests compare our ZFP streams with; optional
  python3                       # checks in tests/; no Python at run time
)

# The libraries that the program is linked with, and those that it opens where they are.
run_packages=(
  libfmt9 libhwy1 libpcre2-8-0 libxxhash0 zlib1g libzstd1 liblz4-1 libsnappy1v5 libstdc++6 libgcc-s1 libc6
  libgomp1 libopenblas0-openmp libdnnl2 libopenmpi3 openmpi-bin
)

is_list=""
for option in "$@"; do
  case "$option" in
    --fuzz) packages+=(clang-14 libclang-rt-14-dev libomp-14-dev) ;;
    --lint) packages+=(clang-format-14 clang-tidy-14) ;;
    --simgrid) packages+=(libsimgrid-dev) ;;
    --browser) packages+=(chromium) ;;
    --run) packages=("${run_packages[@]}") ;;
    --list) is_list=1 ;;
    *) echo "setup: unknown option $option (known: --browser, --fuzz, --lint, --list, --run, --simgrid)" >&2; exit 2 ;;
  esac
done

[ -n "$is_list" ] && { printf '%s\n' "${packages[@]}"; exit 0; }

# Headers only, so the wheel is unpacked and never installed. Without network the build goes on without CUDA.
fetch_cudnn_frontend() {
  local version=1.18.0
  local to="${XDG_CACHE_HOME:-$HOME/.cache}/heddle/cudnn-frontend-$version" wheel
  [ -e "$to/include/cudnn_frontend.h" ] && return
  echo "fetching: the headers of nvidia-cudnn-frontend $version" >&2
  wheel=$(mktemp -d)
  if python3 -m pip download --quiet --no-deps --dest "$wheel" "nvidia-cudnn-frontend==$version" >&2; then
    mkdir -p "$to"
    python3 -m zipfile -e "$wheel"/*.whl "$wheel/unpacked"
    cp -r "$wheel/unpacked/include" "$to/"
  else
    echo "setup: could not fetch nvidia-cudnn-frontend with pip; building without CUDA" >&2
  fi
  rm -rf "$wheel"
}
if [[ " $* " != *" --run "* ]] && { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }; then fetch_cudnn_frontend; fi

missing=()
for package in "${packages[@]}"; do
  if [ "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" != "install ok installed" ]; then
    missing+=("$package")
  fi
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "installing: ${missing[*]}" >&2
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: not root and no sudo; install by hand: ${missing[*]}" >&2; exit 3; }
  as_root="sudo"
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
$as_root apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
