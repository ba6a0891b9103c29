#!/usr/bin/env bash
# Packs what tests/gpu/run.sh needs on a machine with a GPU that lacks our libraries: the program and the tests of
# kernels, linked with CUDA, and beside them the libraries that such a machine does not have. The folder is
# self-contained (rpath $ORIGIN) but for the C and C++ libraries and those of CUDA, cuDNN and NCCL.
#
# Usage: tests/gpu/pack.sh [--arch ARCHITECTURES] [FOLDER]       FOLDER: build-gpu of this tree
# ARCHITECTURES as in CMAKE_CUDA_ARCHITECTURES; 90a-real is that of H100 and H200.
# Without a simulator: SimGrid and what it needs would be a third of it. FOLDER has pack.tar.xz, at most 60 MiB (else exit
# status 1), and MANIFEST.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
arch=90a-real
if [ "${1:-}" = --arch ]; then
    arch=${2:?pack.sh: --arch: what architectures}
    shift 2
fi
case ${1:-} in
-*)
    echo "pack.sh: unknown option $1; allowed: --arch ARCHITECTURES" >&2
    exit 2
    ;;
esac
out=${1:-$top/build-gpu}
tree=$top/build-gpu-tree
most=$((60 << 20))

# What every machine with CUDA has; the C library must not be taken along.
from_system='^(ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cuda|cudart|cublas|cublasLt|cudnn[a-z_]*|nccl|nvrtc[a-z.-]*|nvidia-ml)\.)'

# The shell that links takes the backslash away; the loader replaces $ORIGIN.
# shellcheck disable=SC2016
cmake -S "$top" -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_SIMGRID=OFF -DTESSERA_CUDA=ON \
    -DCMAKE_SKIP_RPATH=ON -DCMAKE_EXE_LINKER_FLAGS='-Wl,--disable-new-dtags,-rpath,\$ORIGIN' \
    -DCMAKE_CUDA_ARCHITECTURES="$arch" >/dev/null </dev/null
cmake --build "$tree" --parallel "${TSR_JOBS:-$(nproc)}" --target gpu_tests </dev/null >"$tree/build.log" 2>&1 || {
    grep -m 3 -A 4 -E 'error|FAILED' "$tree/build.log" >&2
    exit 1
}

rm -rf "$out.new"
mkdir -p "$out.new"
for file in "$tree"/tessera "$tree"/tessera-cuda "$tree"/tests/gpu_test_*; do
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
done < <(needed "$out.new"/*)
chmod u+w "$out.new"/*
strip "$out.new"/* 2>/dev/null || true

# Nothing is left to what this machine happens to have.
for file in "$out.new"/*; do
    dynamic=$(readelf -d "$file")
    # shellcheck disable=SC2016
    if [[ $(basename "$file") != lib* ]] && ! grep -qF '[$ORIGIN]' <<<"$dynamic"; then
        echo "pack.sh: $file: its rpath is not \$ORIGIN" >&2
        exit 1
    fi
    while read -r name; do
        if [[ ! $name =~ $from_system ]] && [ ! -e "$out.new/$name" ]; then
            echo "pack.sh: $file needs $name, which is not packed" >&2
            exit 1
        fi
    done < <(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
done

{
    printf 'commit %s\n' "$(git -C "$top" describe --always --dirty 2>/dev/null || echo unknown)"
    printf 'architectures %s\n' "$arch"
    (cd "$out.new" && sha256sum -- * | grep -v ' MANIFEST$')
} >"$tree/MANIFEST"
mv "$tree/MANIFEST" "$out.new/MANIFEST"

# The tests are alike but for their own code: a window over several of them makes one of all.
rm -rf "$out"
mkdir "$out"
tar -C "$out.new" -cf - . | xz -T1 --lzma2=preset=3,dict=64MiB >"$out/pack.tar.xz"
cp "$out.new/MANIFEST" "$out/"
bytes=$(stat -c %s "$out/pack.tar.xz")
echo "$out: $((bytes >> 20)) MiB; $(($(du -sb "$out.new" | cut -f1) >> 20)) MiB in $(find "$out.new" -type f | wc -l) files"
rm -rf "$out.new"
if [ "$bytes" -gt "$most" ]; then
    echo "pack.sh: $out/pack.tar.xz: found $bytes bytes; allowed: up to $most" >&2
    exit 1
fi
