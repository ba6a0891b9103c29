#!/usr/bin/env bash
# One program for machines on which nothing can be installed: no root, no compiler, no libraries. Builds SimGrid and the
# small libraries from source as static ones, links `tessera` with them and with the C library, and packs it with the data
# that it ships: an archive that unpacks anywhere and runs on any x86-64 Linux. What cannot be part of such a program is
# left out, which is said here and by the program.
#
# Usage: experiments/portable.sh [--sources DIR] [--out DIR] [--here] [--wheel]
#   --sources DIR  take the source archives from there, and nothing from the network
#   --out DIR      where everything is made (build-portable); the archive is DIR/tessera-VERSION-x86_64.tar.gz
#   --here         for this machine and those like it: the C library is the machine's, and OpenBLAS, oneDNN and (from
#                  PKG_CONFIG_PATH) PMIx are used where they are
#   --wheel        the Python package with that program in it, too: DIR/tessera-VERSION-py3-none-manylinux_2_X_x86_64.whl
#   --list         the source archives, their checksums and addresses
#   --digest       what the archive is recognised by: the checksum of the sources of tessera
# Needs C and C++ compilers, cmake, make, pkg-config and Boost's headers; without --sources, curl or wget; for --wheel, a
# Python with setuptools and wheel, and objdump. Started again, it goes on where it was interrupted. Environment: TSR_JOBS, PYTHON
# (python3). Exit status: 0, 1 a step failed, 2 something is missing or wrong.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

debian=https://deb.debian.org/debian/pool/main
# name-version | archive | SHA-256 | address | licence in it
sources="
zlib-1.2.13 | zlib_1.2.13.dfsg.orig.tar.bz2 | 71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1 | $debian/z/zlib/zlib_1.2.13.dfsg.orig.tar.bz2 | README
xxhash-0.8.1 | xxhash_0.8.1.orig.tar.gz | 3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c | $debian/x/xxhash/xxhash_0.8.1.orig.tar.gz | LICENSE
jansson-2.14 | jansson_2.14.orig.tar.gz | c739578bf6b764aa0752db9a2fdadcfe921c78f1228c7ec0bb47fa804c55d17b | $debian/j/jansson/jansson_2.14.orig.tar.gz | LICENSE
expat-2.5.0 | expat_2.5.0.orig.tar.gz | ab00ee05c7067fd10a35c5d2a4922ebba746ddd50ff83b79c828da17bbdf1757 | $debian/e/expat/expat_2.5.0.orig.tar.gz | expat/COPYING
libfyaml-0.7.12 | libfyaml_0.7.12.orig.tar.gz | 485342c6920e9fdc2addfe75e5c3e0381793f18b339ab7393c1b6edf78bf8ca8 | $debian/libf/libfyaml/libfyaml_0.7.12.orig.tar.gz | LICENSE
simgrid-3.32 | simgrid-3.32.tar.gz | 3cc752a28deb2ae42cd51cc835a572f13201702dc94545ced0e77c657231cd76 | https://files.pythonhosted.org/packages/a0/72/a42e5172ae0ef7633a97487cb99021901cf42931340cbb8c37605f608221/simgrid-3.32.tar.gz | LICENSE-LGPL-2.1
"

say() {
    printf '== %s\n' "$*"
}

fail() { # STATUS WORD...
    local status=$1
    shift
    printf 'portable.sh: %s\n' "$*" >&2
    exit "$status"
}

# each FUNCTION: calls it with name, archive, sum, address and licence of every archive, in order.
each() {
    local name archive sum address licence
    while IFS='|' read -r name archive sum address licence; do
        [ -n "${name// /}" ] || continue
        "$1" "${name// /}" "${archive// /}" "${sum// /}" "${address// /}" "${licence// /}" </dev/null
    done <<<"$sources"
}

list_one() {
    printf '%s  %s  %s\n' "$3" "$2" "$4"
}

digest() {
    (cd "$top" && find CMakeLists.txt LICENSE engine sim exec experiments plots -type f ! -name '*.md' ! -name '*.png' ! -name '*.pyc' -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1)
}

# ---- options ----------------------------------------------------------------------------------

from='' out=$top/build-portable here='' wheel='' python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
    case $1 in
    --sources | --out)
        [ -n "${2:-}" ] || fail 2 "$1: a folder must follow"
        [ "$1" = --out ] && out=$2 || from=$2
        shift
        ;;
    --here) here=-here ;;
    --wheel) wheel=yes ;;
    --list)
        each list_one
        exit 0
        ;;
    --digest)
        digest
        exit 0
        ;;
    -h | --help)
        sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *) fail 2 "found $1; allowed: --sources DIR, --out DIR, --here, --wheel, --list, --digest, --help" ;;
    esac
    shift
done
[ -z "$from" ] || [ -d "$from" ] || fail 2 "--sources: found $from, which is no folder"
[ "$(uname -sm)" = "Linux x86_64" ] || fail 2 "found $(uname -sm); allowed: Linux x86_64"
[ -z "$from" ] || from=$(cd "$from" && pwd)
mkdir -p "$out/sources" "$out/libraries"
out=$(cd "$out" && pwd)
work=$out/libraries
prefix=$work/prefix
log=$out/log
jobs=${TSR_JOBS:-$(nproc 2>/dev/null || echo 2)}
: >"$log"
cd "$work" # some of what runs leaves files where it stands

# ---- what the machine must have ----------------------------------------------------------------

for tool in cc c++ ar cmake make pkg-config tar gzip bzip2 sha256sum readelf; do
    command -v $tool >/dev/null || fail 2 "no $tool; it is needed to build"
done
if [ -n "$wheel" ]; then
    command -v objdump >/dev/null || fail 2 "no objdump; --wheel needs it"
    "$python" -c 'import setuptools, pip, wheel
assert int(setuptools.__version__.split(".")[0]) >= 61' 2>>"$log" ||
        fail 2 "$python has no pip, setuptools of 61 or later, and wheel, which --wheel needs; another one: PYTHON=PATH"
fi
try=$(mktemp -d)
trap 'rm -rf "$try"' EXIT
printf '#include <boost/intrusive/list.hpp>\nint main() { return 0; }\n' >"$try/boost.cpp"
c++ ${BOOST_ROOT:+-I"$BOOST_ROOT" -I"$BOOST_ROOT/include"} "$try/boost.cpp" -o "$try/boost" 2>>"$log" ||
    fail 2 "no headers of Boost, which SimGrid is built with (libboost-dev); elsewhere: BOOST_ROOT=DIR"
printf '#include <iostream>\nint main() { std::cout << 1; }\n' >"$try/static.cpp"
[ -n "$here" ] || c++ -static "$try/static.cpp" -o "$try/static" 2>>"$log" ||
    fail 2 "the compiler links no static program here (glibc-static, libstdc++-static); for this machine alone: --here"

# run WORD...: into the log; its end is shown if it fails.
run() {
    printf '\n$ %s\n' "$*" >>"$log"
    "$@" >>"$log" 2>&1 </dev/null || {
        tail -n 20 "$log" >&2
        fail 1 "failed: $* (all of it: $log)"
    }
}

# ---- sources ----------------------------------------------------------------------------------

checked() { # FILE SUM
    [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$2  -" ]
}

fetch() {
    local archive=$2 sum=$3 address=$4 file=$out/sources/$2
    if [ -n "$from" ]; then
        [ -f "$from/$archive" ] || fail 2 "$from/$archive is not there; --list has all names and addresses"
        checked "$from/$archive" "$sum" ||
            fail 2 "$from/$archive: found SHA-256 $(sha256sum <"$from/$archive" | cut -d ' ' -f 1); allowed: $sum"
        return
    fi
    if ! checked "$file" "$sum"; then
        say "fetching $address"
        if command -v curl >/dev/null; then
            run curl -sSfL --retry 2 -o "$file.new" "$address"
        elif command -v wget >/dev/null; then
            run wget -q -O "$file.new" "$address"
        else
            fail 2 "no curl and no wget; the archives may be in a folder: --sources DIR"
        fi
        checked "$file.new" "$sum" || fail 1 "$file.new: its SHA-256 is not $sum, the archive is another one"
        mv "$file.new" "$file"
    fi
}

# ---- libraries --------------------------------------------------------------------------------

by_cmake() { # SOURCE BUILD OPTION...
    local source=$1 build=$2
    shift 2
    run cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
        -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON "$@"
    run cmake --build "$build" --parallel "$jobs"
    run cmake --install "$build"
}

# pc NAME VERSION LIBS: a file by which pkg-config finds a library.
pc() {
    mkdir -p "$prefix/lib/pkgconfig"
    # shellcheck disable=SC2016 # pkg-config replaces these variables
    printf 'libdir=%s/lib\nincludedir=%s/include\n\nName: %s\nDescription: %s, static\nVersion: %s\nCflags: -I${includedir}\nLibs: -L${libdir} %s\n' \
        "$prefix" "$prefix" "$1" "$1" "$2" "$3" >"$prefix/lib/pkgconfig/$1.pc"
}

build_zlib() {
    (cd "$1" && run env CFLAGS="-O2 -fPIC" ./configure --static --prefix="$prefix" --libdir="$prefix/lib")
    run make -C "$1" -j "$jobs" libz.a
    run make -C "$1" install
}

build_xxhash() {
    run make -C "$1" CFLAGS="-O2 -fPIC" libxxhash.a
    mkdir -p "$prefix/lib" "$prefix/include"
    cp "$1/libxxhash.a" "$prefix/lib/"
    cp "$1/xxhash.h" "$prefix/include/"
    pc libxxhash 0.8.1 -lxxhash
}

build_jansson() {
    by_cmake "$1" "$2" -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
}

build_expat() {
    by_cmake "$1/expat" "$2" -DEXPAT_SHARED_LIBS=OFF -DEXPAT_BUILD_TOOLS=OFF -DEXPAT_BUILD_EXAMPLES=OFF \
        -DEXPAT_BUILD_TESTS=OFF -DEXPAT_BUILD_DOCS=OFF
}

build_libfyaml() {
    mkdir -p "$2"
    [ -e "$2/Makefile" ] || (cd "$2" && run "$1/configure" --quiet --disable-shared --enable-static --with-pic --prefix="$prefix" \
        --libdir="$prefix/lib" CFLAGS=-O2)
    run make -C "$2" -j "$jobs" install
}

# SimGrid builds a shared library; its objects make the static one. Its checks of itself stay (no NDEBUG).
build_simgrid() {
    run cmake -S "$1" -B "$2" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-g0 -DCMAKE_C_FLAGS_RELEASE=-g0 \
        -Denable_smpi=OFF -Denable_python=OFF -Denable_lto=OFF -Denable_documentation=OFF -Denable_fortran=OFF \
        -Denable_java=OFF -Dminimal-bindings=ON -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON
    run cmake --build "$2" --parallel "$jobs" --target simgrid
    mkdir -p "$prefix/lib" "$prefix/include"
    rm -f "$2/libsimgrid.a"
    find "$2/CMakeFiles/simgrid.dir" -name '*.o' -print0 | LC_ALL=C sort -z | xargs -0 ar rcs "$2/libsimgrid.a"
    cp "$2/libsimgrid.a" "$prefix/lib/"
    cp -r "$1/include/simgrid" "$1/include/xbt" "$1/include/xbt.h" "$2/include/simgrid" "$prefix/include/"
    pc simgrid 3.32 "-lsimgrid -lstdc++ -lm -lpthread"
}

# A library is done when its stamp says of what it was made: the archive, this file, the compiler.
stamp_of() {
    { printf "%s\n" "$1" "$prefix" && cc --version && c++ --version && declare -f by_cmake pc "$2"; } | sha256sum | cut -d ' ' -f 1
}

library() {
    local name=$1 archive=$2 sum=$3 licence=$5 file=$out/sources/$2 stamp
    [ -z "$from" ] || file=$from/$archive
    stamp=$(stamp_of "$sum" "build_${name%-*}")
    if [ "$(cat "$work/$name.done" 2>/dev/null)" = "$stamp" ]; then
        say "$name is built"
        return
    fi
    say "building $name"
    if [ "$(cat "$work/$name.begun" 2>/dev/null)" != "$stamp" ]; then # nothing of it can be gone on with
        rm -rf "${work:?}/$name" "$work/$name-build" "$work/$name.new"
        mkdir "$work/$name.new"
        run tar -xf "$file" -C "$work/$name.new" --strip-components 1
        mv "$work/$name.new" "$work/$name"
        echo "$stamp" >"$work/$name.begun"
    fi
    "build_${name%-*}" "$work/$name" "$work/$name-build"
    mkdir -p "$prefix/licences"
    cp "$work/$name/$licence" "$prefix/licences/${name%-*}"
    echo "$stamp" >"$work/$name.done"
}

# ---- the program ------------------------------------------------------------------------------

program() {
    export PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig # these, and none of the machine's
    local static=OFF
    if [ -z "$here" ]; then
        static=ON
        unset PKG_CONFIG_PATH
    fi
    say "building tessera"
    run cmake -S "$top" -B "$out/tessera$here" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib -DTESSERA_TESTS=OFF \
        -DTESSERA_SIMGRID=ON -DTESSERA_CUDA=OFF -DTESSERA_STATIC=$static
    cmake -S "$top" -B "$out/tessera$here" | sed -n 's/^-- left out/   left out/p'
    run cmake --build "$out/tessera$here" --parallel "$jobs" --target tessera
}

what_is_in_it() {
    printf '%s, from %s (SHA-256 %s): %s\n' "$1" "$4" "$3" "LICENSE.${1%-*}"
}

# stage FOLDER: program and data as they will lie, with the studies beside the models and clusters that they name.
stage() {
    local share=$1/share/tessera study
    run cmake --install "$out/tessera$here" --prefix "$1" --strip
    rm -rf "${1:?}/include" "${1:?}/lib"
    for study in flagship small own-model topologies; do
        mkdir "$share/$study"
        cp "$top/experiments/$study"/*.yaml "$share/$study/"
    done
    cp "$top/experiments/small/llama-tiny.json" "$share/small/"
    mkdir -p "$1/share/doc/tessera"
    cp "$top/LICENSE" "$1/share/doc/tessera/"
    for study in "$prefix/licences"/*; do
        cp "$study" "$1/share/doc/tessera/LICENSE.${study##*/}"
    done
    {
        echo "Linked into bin/tessera; experiments/portable.sh of tessera's sources links it again, with other versions, too."
        each what_is_in_it
        [ -n "$here" ] || echo "glibc ($(getconf GNU_LIBC_VERSION)), libstdc++ and libgcc ($(c++ -dumpfullversion)) of the machine that linked it"
    } >"$1/share/doc/tessera/LIBRARIES"
    digest >"$1/share/doc/tessera/SOURCES"
}

# The archive gets its name when it is whole and its program has run.
pack() {
    local version name archive alone=(env -i)
    [ -z "$here" ] || alone=(env) # modules may have said where libraries are
    version=$(sed -n 's/^project(tessera VERSION \([0-9.]*\).*/\1/p' "$top/CMakeLists.txt")
    name=tessera-$version-x86_64$here
    archive=$out/$name.tar.gz
    rm -rf "$out/stage" "$archive.new"
    mkdir "$out/stage"
    stage "$out/stage/$name"
    if [ -z "$here" ] && [[ $(readelf -lW "$out/stage/$name/bin/tessera") == *INTERP* ]]; then
        fail 1 "$out/stage/$name/bin/tessera is not static"
    fi
    [[ $(cd / && "${alone[@]}" "$out/stage/$name/bin/tessera" --version) == "tessera $version"* ]] || fail 1 "the program does not run"
    tar -C "$out/stage" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -9n >"$archive.new"
    mv "$archive.new" "$archive"
    say "made $archive: $(stat -c %s "$archive") bytes, the program in it $(stat -c %s "$out/stage/$name/bin/tessera") bytes"
    [ -z "$wheel" ] || pack_wheel "$out/stage/$name"
    rm -rf "$out/stage"
}

# pack_wheel FOLDER: the Python package, with program and data of FOLDER in it.
pack_wheel() {
    local made
    cp -r "$top/experiments/torch" "$out/stage/torch"
    rm -rf "$out/stage/torch/build" "$out"/stage/torch/*.egg-info "$out"/stage/torch/tessera/*.so
    run env TESSERA_NATIVE="$1" "$python" -m pip wheel --quiet --no-deps --no-build-isolation --no-index \
        --wheel-dir "$out/stage/wheel" "$out/stage/torch"
    made=$(find "$out/stage/wheel" -name 'tessera-*.whl')
    [ -n "$here" ] || [[ $made == *-py3-none-manylinux_2_*_x86_64.whl ]] || fail 1 "${made##*/}: a part of it needs other libraries than glibc"
    rm -f "$out"/tessera-*.whl
    mv "$made" "$out/"
    say "made $out/${made##*/}: $(stat -c %s "$out/${made##*/}") bytes"
}

[ -z "$from" ] || say "source archives: those of $from; nothing is fetched"
each fetch
each library
program
pack
