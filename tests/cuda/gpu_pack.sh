#!/usr/bin/env bash
# tests/gpu/pack.sh on the programs of this build: what it packs runs without our libraries elsewhere, and says so where there
# is no GPU. Exit 77: skipped, there is no program with CUDA (nvcc), python3 or xz.
: "${TSR_SOURCE_DIR:?the source tree}" "${TSR_BUILD_DIR:?the build}"
for tool in python3 xz readelf nvcc; do
    command -v "$tool" >/dev/null || [ -x "/usr/local/cuda/bin/$tool" ] || {
        echo "skipped: no $tool"
        exit 77
    }
done
[ -x "$TSR_BUILD_DIR/tessera-cuda" ] || {
    echo "skipped: this build has no tessera-cuda"
    exit 77
}
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh" || exit 1
: "${tmp:?a folder of our own}" "${out:?}" "${err:?}"
pack=$TSR_SOURCE_DIR/tests/gpu/pack.sh

# ends STATUS WORD...: runs a command.
ends() {
    want=$1
    shift
    checks=$((checks + 1))
    "$@" >"$out" 2>"$err" </dev/null
    got=$?
    [ "$got" = "$want" ] || complain "$*: exit status $got, not $want"
}

ends 0 "$pack" --from "$TSR_BUILD_DIR" "$tmp/pack"
has "$tmp/pack/MANIFEST" 'commit ' 'attention ' 'tessera-cuda' 'libjansson' 'env.sh'
ends 2 "$pack" --form "$TSR_BUILD_DIR"
has "$err" '--from'

# Every test of kernels is one of those that pack.sh builds.
checks=$((checks + 1))
targets=$(cmake --build "$TSR_BUILD_DIR" --target help 2>/dev/null)
for name in cudnn matmul norms loss fused optimizer rows lists; do
    grep -q "gpu_test_kernels_$name" <<<"$targets" || complain "no target gpu_test_kernels_$name"
done

# Every library that is not CUDA's or the C library's is the packed one.
export TESSERA_GPU_DIR=$tmp/pack
ends 1 env PYTHONPATH= "$TSR_SOURCE_DIR/tests/gpu/run.sh" smoke "$tmp" --seconds 0
has "$tmp/smoke.json" '"not run"' '"commit"' '"attention"'
checks=$((checks + 1))
strange=$(ldd "$tmp/pack/unpacked/tessera-cuda" | awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | grep -v "^$tmp/pack/unpacked/" |
    grep -vE '/(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cudart|cublas|cublasLt|cudnn[a-z_]*|nccl|nvrtc[a-z.-]*))\.so')
[ -z "$strange" ] || complain "not packed: $strange"
ends 0 env -i "$tmp/pack/unpacked/tessera-cuda" --version

# In a folder tree that has nothing but the pack, the C libraries and CUDA's it starts, and a job comes as far as the driver.
# /proc is how a program finds the folder that it is in.
cat >"$tmp/bare.sh" <<'END'
set -e
root=$1 packed=$2
mkdir -p "$root/pack" "$root/proc" "$root/tree"
for file in $(ldd "$packed/tessera-cuda" | awk '$2 == "=>" { print $3 } $1 ~ "^/" { print $1 }'); do
    case $file in "$packed"/*) continue ;; esac
    mkdir -p "$root$(dirname "$file")"
    : >"$root$file"
    mount --bind "$(readlink -f "$file")" "$root$file"
done
mount --bind "$packed" "$root/pack"
mount --bind "$3" "$root/tree"
mount --rbind /proc "$root/proc"
exec chroot "$root" /pack/tessera-cuda run /tree/experiments/h200/tiny-llama.yaml --strategy fsdp --on cuda --set data.train=null
END
if unshare -rm true 2>/dev/null; then
    ends 1 unshare -rm bash "$tmp/bare.sh" "$tmp/bare" "$tmp/pack/unpacked" "$TSR_SOURCE_DIR"
    has "$err" 'CUDA: found no driver'
    [ "$(wc -l <"$err")" = 1 ] || complain "in a bare tree it says more than a line"
fi

# A program that is started by hand finds CUDA's libraries where PyTorch has them, and the recorded scenarios.
mkdir -p "$tmp/site/nvidia/cublas/lib"
checks=$((checks + 1))
found=$(cd "$TSR_SOURCE_DIR" && env -i PATH="$PATH" PYTHONPATH="$tmp/site" bash -euc '. "$1"; echo "$LD_LIBRARY_PATH $TSR_SOURCE_DIR"' - "$tmp/pack/unpacked/env.sh")
[[ $found == *"$tmp/site/nvidia/cublas/lib"*" $TSR_SOURCE_DIR" ]] || complain "env.sh: LD_LIBRARY_PATH and TSR_SOURCE_DIR are '$found'"

# A program that would take the libraries of where it was built.
mkdir -p "$tmp/build/tests"
cp "$(type -P true)" "$tmp/build/tessera-cuda"
: >"$tmp/build/CMakeCache.txt"
ends 1 "$pack" --from "$tmp/build" "$tmp/pack2"
has "$err" 'rpath does not begin with'
ends 1 env TESSERA_GPU_DIR="$tmp/pack2" TESSERA_PROGRAM="$tmp/nothing" "$TSR_SOURCE_DIR/tests/gpu/run.sh" smoke "$tmp/nowhere"
has "$err" 'no program there'
finish
