#!/bin/sh
# The picture of the README has the title, the peak and the step of today's program, and is the one that was drawn with
# them; those of report.md say what the program says; a picture of other figures, or another one in its place, is noticed.
set -u
: "${TESSERA:?the program}" "${TSR_SOURCE_DIR:?the source tree}"
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
"$TSR_SOURCE_DIR/experiments/flagship/picture.sh" --check || exit 1
"$TSR_SOURCE_DIR/experiments/guide/pictures.sh" --check || exit 1

mkdir -p "$tmp/experiments/flagship" || exit 1
for part in plots experiments/clusters experiments/models; do
    ln -s "$TSR_SOURCE_DIR/$part" "$tmp/$part" || exit 1
done
for file in dgx-h100-8.yaml memory.png memory.txt picture.sh; do
    cp "$TSR_SOURCE_DIR/experiments/flagship/$file" "$tmp/experiments/flagship/" || exit 1
done
copy=$tmp/experiments/flagship
"$copy/picture.sh" --check >/dev/null || {
    echo "FAILED: a copy of the study is another one"
    exit 1
}
noticed() {
    "$copy/picture.sh" --check >"$tmp/out" 2>&1
    [ $? = 1 ] && grep -q 'is out of date' "$tmp/out" && return
    echo "FAILED: $1 was not noticed"
    exit 1
}
sed 's/^batch: 1/batch: 2/' "$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml" >"$copy/dgx-h100-8.yaml"
noticed "another peak"
cp "$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml" "$copy/"
printf x >>"$copy/memory.png"
noticed "another picture"
