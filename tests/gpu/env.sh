# shellcheck shell=bash
# env.sh: lets programs that are linked with CUDA find its libraries: those of PyTorch's packages, so that both
# sides of a comparison have the same; what is missing then, beside nvcc. Sourced, not run. tests/gpu/pack.sh puts
# it beside the programs, and there it does so when it is sourced:
#
#   . build-gpu/unpacked/env.sh; build-gpu/unpacked/gpu_test_kernels_loss
#
# It changes LD_LIBRARY_PATH and, in a checkout, sets TSR_SOURCE_DIR, where the tests find recorded scenarios.

tsr_lacks() { # PROGRAM: prints the libraries that it does not find
    { ldd "$1" 2>/dev/null || true; } | awk '/not found/ { print $1 }'
}

tsr_add_folders() { # FOLDER...
    local folder
    for folder in "$@"; do
        [ ! -d "$folder" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
}

tsr_find_cuda() { # PROGRAM
    local places nvcc
    [[ $(ldd "$1" 2>/dev/null) == *libcublasLt* ]] || return 0
    readarray -t places < <("${PYTHON:-python3}" -c 'import glob, sys
for p in sys.path: print("\n".join(glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null | grep . || true)
    tsr_add_folders "${places[@]}"
    nvcc=$(command -v nvcc || true)
    [ -z "$nvcc" ] || [ -z "$(tsr_lacks "$1")" ] || tsr_add_folders "$(dirname "$(dirname "$(readlink -f "$nvcc")")")/lib64"
}

tsr_packed=$(dirname "${BASH_SOURCE[0]}")/tessera-cuda
if [ -x "$tsr_packed" ]; then
    tsr_find_cuda "$tsr_packed"
    [ -n "${TSR_SOURCE_DIR:-}" ] || [ ! -d tests/golden ] || export TSR_SOURCE_DIR=$PWD
fi
unset tsr_packed
