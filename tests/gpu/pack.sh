#!/usr/bin/env bash
# Packs what tests/gpu/run.sh needs on a machine with a GPU that lacks our libraries: the program and the tests of
# kernels, linked with CUDA, and beside them the libraries that such a machine does not have. The folder is
# self-contained (rpath $ORIGIN) but for the C and C++ libraries and those of CUDA, cuDNN and NCCL, which the env.sh in it
# finds.
#
# Usage: tests/gpu/pack.sh [--arch ARCHITECTURES] [--plain-attention] [--from BUILD] [FOLDER]
# FOLDER: build-gpu of this tree. ARCHITECTURES as in CMAKE_CUDA_ARCHITECTURES; 90a-real is that of H100 and H200.
# Without a simulator: SimGrid and what it needs would be a third of it. FOLDER has pack.tar.xz, at most 60 MiB (else exit
# status 1), and MANIFEST. Without cudnn-frontend attention would be many times slower: refused, unless --plain-attention.
# --from takes the programs of a build that is there, whatever they were built with: for tests.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
arch=90a-real plain='' from=''
while :; do
    case ${1:-} in
    --arch) arch=${2:?pack.sh: --arch: what architectures} && shift ;;
    --from) from=${2:?pack.sh: --from: what build} && shift ;;
    --plain-attention) plain=yes ;;
    -*)
        echo "pack.sh: unknown option $1; allowed: --arch ARCHITECTURES, --plain-attention, --from BUILD" >&2
        exit 2
        ;;
    *) break ;;
    esac
    shift
done
out=${1:-$top/build-gpu}
tree=${from:-$top/build-gpu-tree}
most=$((60 << 20))

# What every machine with CUDA has; the C library must not be taken along.
from_system='^(ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cuda|cudart|cublas|cublasLt|cudnn[a-z_]*|nccl|nvrtc[a-z.-]*|nvidia-ml)\.)'

# configured KEY: a value of the build's cache.
configured() {
    sed -n "/NOTFOUND$/d; s/^$1:[A-Z]*=//p" "$tree/CMakeCache.txt"
}

# The shell that links takes the backslash away; the loader replaces $ORIGIN.
# shellcheck disable=SC2016
configure() {
    cmake -S "$top" -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_SIMGRID=OFF -DTESSERA_CUDA=ON \
        -DCMAKE_SKIP_RPATH=ON -DCMAKE_EXE_LINKER_FLAGS='-Wl,--disable-new-dtags,-rpath,\$ORIGIN' \
        -DCMAKE_CUDA_ARCHITECTURES="$arch" >/dev/null </dev/null
}
build() {
    cmake --build "$tree" --parallel "${TSR_JOBS:-$(nproc)}" --target gpu_tests </dev/null >"$tree/build.log" 2>&1 || {
        grep -m 3 -A 4 -E 'error|FAILED' "$tree/build.log" >&2
        exit 1
    }
}
if [ -n "$from" ]; then
    arch="those of the build"
else
    configure
fi
attention=plain
if [ -n "$(configured TSR_CUDNN)" ] && [ -f "$(configured TSR_CUDNN_FRONTEND)/cudnn_frontend.h" ]; then
    attention=cuDNN
elif [ -z "$plain$from" ]; then
    echo "pack.sh: attention: found no $(configured TSR_CUDNN_FRONTEND)/cudnn_frontend.h, or no cuDNN; allowed: with both" \
        "(experiments/setup.sh fetches the first), or --plain-attention, many times slower" >&2
    exit 1
fi
[ -n "$from" ] || build

rm -rf "$out.new"
mkdir -p "$out.new"
for file in "$tree"/tessera-cuda "$tree"/tests/gpu_test_*; do
    if [ ! -f "$file" ] || [ ! -x "$file" ]; then
        continue
    fi
    cp "$file" "$out.new/"
done
[ -x "$out.new/tessera-cuda" ] || {
    echo "pack.sh: $tree: no tessera-cuda was built" >&2
    exit 1
}

# needed FILE...: names and paths of the libraries that they need, those of libraries included.
needed() {
    ldd "$@" | awk '$2 == "=>" { print $1, $3 }' | sort -u
}

while read -r name path; do
    if [[ $name =~ $from_system ]]; then
        continue
    elif [ ! -f "$path" ]; then
        echo "pack.sh: $name: is needed and not on this machine" >&2
        exit 1
    fi
    cp -L "$path" "$out.new/$name"
done < <(
    needed "$out.new"/*
    # loaded when the program runs (exec/kernels/matrix/libraries.c)
    blas=$(configured TSR_OPENBLAS)
    if [ -n "$blas" ]; then
        echo "libopenblas.so.0 $blas"
        needed "$blas"
    fi
)
chmod u+w "$out.new"/*
strip "$out.new"/* 2>/dev/null || true

# Nothing is left to what this machine happens to have. RPATH, as what a library needs is looked up there, too.
for file in "$out.new"/*; do
    dynamic=$(readelf -d "$file")
    # shellcheck disable=SC2016
    if [[ $(basename "$file") != lib* ]] && ! grep -qE '\(RPATH\).*\[\$ORIGIN[]:]' <<<"$dynamic"; then
        echo "pack.sh: $file: its rpath does not begin with \$ORIGIN" >&2
        exit 1
    fi
    while read -r name; do
        if [[ ! $name =~ $from_system ]] && [ ! -e "$out.new/$name" ]; then
            echo "pack.sh: $file needs $name, which is not packed" >&2
            exit 1
        fi
    done < <(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
done

cp "$top/tests/gpu/env.sh" "$out.new/"
{
    printf 'commit %s\n' "$(git -C "$top" describe --always --dirty 2>/dev/null || echo unknown)"
    printf 'architectures %s\n' "$arch"
    printf 'attention %s\n' "$attention"
    (cd "$out.new" && sha256sum -- *)
} >"$out.manifest"
mv "$out.manifest" "$out.new/MANIFEST"

# The tests are alike but for their own code: a window over several of them makes one of all. What another build made is packed
# in the least time.
how=preset=3,dict=64MiB
[ -z "$from" ] || how=preset=0,dict=256KiB,mf=hc3,nice=3,depth=1
rm -rf "$out"
mkdir "$out"
tar -C "$out.new" -cf - . | xz -T1 --lzma2=$how >"$out/pack.tar.xz"
cp "$out.new/MANIFEST" "$out/"
bytes=$(stat -c %s "$out/pack.tar.xz")
echo "$out: $((bytes >> 20)) MiB; $(($(du -sb "$out.new" | cut -f1) >> 20)) MiB in $(find "$out.new" -type f | wc -l) files"
rm -rf "$out.new"
if [ "$bytes" -gt "$most" ]; then
    echo "pack.sh: $out/pack.tar.xz: found $bytes bytes; allowed: up to $most" >&2
    exit 1
fi
