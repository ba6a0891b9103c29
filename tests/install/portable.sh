#!/usr/bin/env bash
# The portable program: small, without a shared library; unpacked into a folder that is all it sees, it says what the program
# of the build says, and finds its own data. Exit status 77: it was not made, or of other sources (experiments/portable.sh
# makes it, which takes too long for a test).
set -euo pipefail
[ -n "${TESSERA:-}" ] && [[ $("$TESSERA" help) == *"  compare "* ]] || exit 77
script=$TSR_SOURCE_DIR/experiments/portable.sh
version=$("$TESSERA" --version)
archive=${TSR_PORTABLE:-$TSR_SOURCE_DIR/build-portable}/${version/ /-}-x86_64.tar.gz
[ -f "$archive" ] || {
    echo "skipped: there is no $archive; experiments/portable.sh makes it"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xzf "$archive" -C "$work"
root=$(find "$work" -mindepth 1 -maxdepth 1 -name 'tessera-*')
[ "$(cat "$root/share/doc/tessera/SOURCES")" = "$("$script" --digest)" ] || {
    echo "skipped: $archive was made of other sources; experiments/portable.sh makes it again"
    exit 77
}

# Small, and of no C library's version.
for file in "$archive" "$root/bin/tessera"; do
    [ "$(stat -c %s "$file")" -le 30000000 ] || {
        echo "$file: $(stat -c %s "$file") bytes; allowed: 30000000"
        exit 1
    }
done
dynamic=$(LC_ALL=C readelf -ldW "$root/bin/tessera")
[[ $dynamic == *"There is no dynamic section in this file."* && $dynamic != *INTERP* ]] || {
    echo "the program needs shared libraries: $dynamic"
    exit 1
}

# alone WORD...: the program where nothing is but what was unpacked, as far as this machine allows that.
mkdir "$root/proc"
if unshare -rmpf --mount-proc --root="$root" -w / /bin/tessera --version >/dev/null 2>&1; then
    where="with nothing else in sight"
    alone() {
        env -i unshare -rmpf --mount-proc --root="$root" -w / /bin/tessera "$@"
    }
else
    where="in the folder, among other files (unshare is not allowed)"
    alone() {
        (cd "$root" && env -i bin/tessera "$@")
    }
fi

study=share/tessera/flagship/dgx-h100-8.yaml
alone compare $study --no-traces --pictures none --out out >"$work/said"
mv "$root/out" "$work/portable"
(cd "$root" && "$TESSERA" compare $study --no-traces --pictures none --out out >"$work/said-here")
mv "$root/out" "$work/here"
diff "$work/said-here" "$work/said"
rm "$work/here/wall.json" "$work/portable/wall.json"
diff -r "$work/here" "$work/portable"

# Its own models, not those that its sources had.
printf 'model: llama-3.2-1b\ncluster: dgx-h100-1\nseq: 128\n' >"$root/mine.yaml"
sed -i 's/"num_hidden_layers": 16/"num_hidden_layers": 3/' "$root/share/tessera/models/llama-3.2-1b.json"
said=$(alone inspect mine.yaml)
[[ $said == *"layers 3,"* ]] || {
    echo "it does not read its own models: $said"
    exit 1
}

# It trains, to the same bits as the other one without what it cannot have, and says that it has not got it.
mkdir "$root/text"
cp "$TSR_SOURCE_DIR"/experiments/guide/*.md "$root/text/"
alone corpus text --out out/corpus >/dev/null 2>&1
job=(run share/tessera/small/llama.yaml --strategy fsdp --on host --set train.steps=1 --set train.warmup=1 --set batch=1
    --set world=2 --set eval.batches=1)
alone "${job[@]}" --out portable >/dev/null 2>&1
(cd "$root" && TESSERA_PRODUCTS=plain "$TESSERA" "${job[@]}" --out here >/dev/null 2>&1)
diff -r "$root/here/checkpoints" "$root/portable/checkpoints"
grep '"host_products": *"plain loops"' "$root/portable/run.json"

[ -s "$root/share/doc/tessera/LICENSE.simgrid" ] && grep -F simgrid-3.32 "$root/share/doc/tessera/LIBRARIES"
echo "the portable program says what that of the build says, $where"
