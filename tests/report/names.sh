#!/usr/bin/env bash
# Hostile names in every place where a name comes from: title, strategies, modules, cluster, the path
# of the experiment. No command lets a control, a mark of direction or a byte that is no UTF-8 through,
# in no format and no file that it writes; errors stay one line; names of other scripts stay as they are.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh" || exit 1
export LC_ALL=C

# clean FILE...: none of what a terminal must not get. A tab may stand in CSV, inside quotes.
clean() {
    local file hidden
    for file; do
        checks=$((checks + 1))
        case $file in
        *.gz) gzip -dc "$file" >"$tmp/unpacked.csv" || complain "$(printf %q "$file"): is damaged"
            file=$tmp/unpacked.csv ;;
        esac
        hidden='[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]'
        case $file in
        *csv | *svg) ;; # gnuplot itself has some
        *) hidden="$hidden|\t" ;;
        esac
        if grep -qaP "$hidden" "$file"; then
            grep -aPm 1 "$hidden" "$file" | cat -v | cut -c 1-200
            complain "$(printf %q "$file"): a control character"
        fi
        iconv -f utf-8 -t utf-8 "$file" >/dev/null 2>&1 || complain "$(printf %q "$file"): no UTF-8"
    done
}

bytes=$(printf 'd\033[2J\nn\001\177\302\233\342\200\256\xe6\xbc\xa2')
dir=$tmp/$bytes
mkdir "$dir"
cat >"$dir/tree.yaml" <<'Y'
tokens: 256
loss: ce
modules:
  - {name: "e\e[31mmb\n\x7f", type: embedding, num: 256, dim: 64}
  - name: layers
    type: list
    children:
      - {name: "0", type: seq, children: [{name: "漢é\u0085\t,=", type: linear, in: 64, out: 64}]}
      - {name: "1", type: seq, children: [{name: "@x\r\u2066\u202e\"", type: linear, in: 64, out: 64}]}
  - {name: "-head\a", type: linear, in: 64, out: 256}
Y
clusters=$TSR_SOURCE_DIR/experiments/clusters
cp "$clusters"/*.json "$dir"
sed -e 's/"name": *"[^"]*"/"name": "ev\\u001bil\\u202e"/' \
    -e 's/"description": *"[^"]*"/"description": "x\\u000ay\\u009b"/' \
    "$clusters/cluster-dgx-h100-1.json" >"$dir/cluster-evil.json"
yaml=$dir/file.yaml
cat >"$yaml" <<'Y'
title: "t\e[31m\nx\u202e\u0085\x7f é漢"
model: {tree: tree.yaml}
cluster: cluster-evil.json
world: 4
batch: 1
seq: 64
strategies:
  =1+1: {}
  "@s": {api: ddp}
  -2+3: {batch: 2}
  "+x": {checkpoint: full}
plan:
  space:
    batch: [1, 2]
Y

# each ARGUMENT...: works, and neither stream has anything hidden
each() {
    works "$@"
    clean "$out" "$err"
}
for format in md csv json; do
    each compare "$yaml" --format $format
    each sim "$yaml" --strategy =1+1 --format $format
    each plan "$yaml" --strategy @s --format $format
    each plan "$yaml" --strategy @s --max batch --format $format
done
for format in text json; do
    each explain "$yaml" --strategy +x --format $format
    each diff "$yaml:=1+1" "$yaml:@s" --format $format
    each overlap "$yaml" --strategy =1+1 --format $format
    each inspect "$yaml" --format $format
done
each check "$yaml"
each program "$yaml" --strategy =1+1
each compare "$yaml" --print-config
has "$out" é漢
each compare "$yaml" --out "$tmp/out" --pictures svg
each overlap "$tmp/out/=1+1"
each diff "$tmp/out/=1+1" "$tmp/out/@s"
each plan "$yaml" --strategy @s --out "$tmp/plan"
each sim "$yaml" --strategy =1+1 --out "$tmp/sim" --pictures svg
while IFS= read -r -d '' name; do
    clean "$name"
done < <(find "$tmp/out" "$tmp/plan" "$tmp/sim" -type f ! -name '*.png' ! -name '*.pickle' -print0)

# A spreadsheet computes none of them, and they are read back as they were.
works compare "$yaml" --format csv
for mark in '"'"'"'=1+1"' '"'"'"'@s"' '"'"'"'-2+3"' '"'"'"'+x"'; do
    has "$out" ",$mark,"
done

# Errors: one line each, whatever is named.
fails 2 '\x1b[2J\nn\x01\x7f\u009b\u202e漢' -- compare "$dir/none.yaml"
clean "$err"
fails 2 'a\x1b[31m' -- compare "$yaml" --set $'a\e[31m=1'
clean "$err"
fails 2 'x\u202ey' -- compare "$yaml" --only $'x\342\200\256y'
clean "$err"
fails 2 '\xff' -- explain "$yaml" --strategy $'a\xff\n'
clean "$err"
fails 2 'a\x1bb' -- $'a\eb'
clean "$err"
finish
