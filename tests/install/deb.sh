#!/usr/bin/env bash
# The Debian package: made by cpack, unpacked somewhere, it passes the install test, finds its own data, and knows what it
# depends on. Exit status 77: there is no dpkg.
set -euo pipefail
[ -n "${TESSERA:-}" ] || exit 77
for tool in cpack dpkg-deb dpkg-shlibdeps; do
    command -v $tool >/dev/null || {
        echo "skipped: no $tool"
        exit 77
    }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cpack -G DEB -B "$work" -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip --config "$TSR_BUILD_DIR/CPackConfig.cmake" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
deb=$(find "$work" -maxdepth 1 -name 'tessera_*.deb')
dpkg-deb -x "$deb" "$work/unpacked"
said=$(dpkg-deb -I "$deb")
for word in "Package: tessera" "libjansson4" "libfyaml0" "libsimgrid" "Recommends: gnuplot-nox" "Section: science"; do
    [[ $said == *"$word"* ]] || {
        echo "the package does not say $word: $said"
        exit 1
    }
done
[ "$(stat -c %s "$deb")" -lt 10000000 ]
TSR_PREFIX=$work/unpacked/usr "$TSR_SOURCE_DIR/tests/install/install.sh"

# Its own models, clusters and scripts, not those of the source tree that it was built from.
mkdir "$work/user"
printf 'model: llama-3.2-1b\ncluster: dgx-h100-1\nseq: 128\n' >"$work/user/mine.yaml"
sed -i 's/"num_hidden_layers": 16/"num_hidden_layers": 3/' "$work/unpacked/usr/share/tessera/models/llama-3.2-1b.json"
said=$(cd "$work/user" && "$work/unpacked/usr/bin/tessera" inspect mine.yaml)
[[ $said == *"layers 3,"* ]] || {
    echo "it does not read its own models: $said"
    exit 1
}
if command -v gnuplot >/dev/null && [[ $("$TESSERA" help) == *"  compare "* ]]; then
    echo 'print "its own script"; exit status 7' >"$work/unpacked/usr/share/tessera/plots/compare-time.gp"
    said=$(cd "$work/user" && "$work/unpacked/usr/bin/tessera" compare mine.yaml --out out 2>&1) && exit 1
    [[ $said == *"gnuplot failed: its own script (1 of 5 pictures failed; the others are drawn)"* ]] || {
        echo "it does not run its own scripts: $said"
        exit 1
    }
    for name in compare-bars compare-time-memory default/memory default/timeline; do # one takes no other with it
        [ -s "$work/user/out/$name.svg" ] && [ -s "$work/user/out/$name.png" ]
    done
    [ -z "$(find "$work/user/out" -name 'compare-time.*[gf]' -o -name '.new-*')" ]
fi
echo "the package is whole, and finds its own data"
