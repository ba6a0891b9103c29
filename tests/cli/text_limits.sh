#!/usr/bin/env bash
# Text that no parser should see: what is not UTF-8, control characters, documents that nest, repeat or
# grow without end. One line names the file, the line, what was found and what is allowed; none takes long.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

# A hang is a failure, not a wait.
ulimit -t 60

# text NAME FORMAT: a file in $tmp
text() {
    # shellcheck disable=SC2059
    printf "$2" >"$tmp/$1"
}
# repeat N TEXT
repeat() {
    awk -v n="$1" -v text="$2" 'BEGIN { for (i = 0; i < n; i++) printf "%s", text }'
}

# ---- encoding ----
text hang.yaml '%%\377'
fails 2 "hang.yaml:1: byte 0xff is not UTF-8" "allowed: text in UTF-8" -- inspect "$tmp/hang.yaml"
text late.yaml 'a: 1\nb: 2\nc: \303\050\n'
fails 2 "late.yaml:3: byte 0xc3 is not UTF-8" -- inspect "$tmp/late.yaml"
text overlong.yaml 'a: \300\200\n'
fails 2 "overlong.yaml:1: byte 0xc0" -- inspect "$tmp/overlong.yaml"
text surrogate.yaml 'a: \355\240\200\n'
fails 2 "surrogate.yaml:1: byte 0xed" -- inspect "$tmp/surrogate.yaml"
text wide.yaml '\377\376a\000:\000'
fails 2 "wide.yaml:1: text in UTF-16; allowed: text in UTF-8" -- inspect "$tmp/wide.yaml"
text escape.yaml 'a: 1\nb: \033[2J\n'
fails 2 "escape.yaml:2: control character U+001B" -- inspect "$tmp/escape.yaml"
text c1.yaml 'a: \302\233\n'
fails 2 "c1.yaml:1: control character U+009B" -- inspect "$tmp/c1.yaml"
text zero.yaml 'title: "x\\0y"\n'
fails 2 "zero.yaml:1:9: found a text with a 0 in it" -- inspect "$tmp/zero.yaml"
fails 2 "--set title=" ": byte 0xff is not UTF-8" -- inspect "$TSR_SOURCE_DIR/experiments/small/llama.yaml" --set "title=$(printf '\377')"
text mark.yaml '\357\273\277title: x\nbacth: 2\n'
fails 2 "mark.yaml:2" '"bacth"' -- inspect "$tmp/mark.yaml"

# ---- YAML that grows ----
{
    echo 'a0: &a0 [x, x, x, x, x, x, x, x, x]'
    i=0
    while [ $i -lt 10 ]; do
        echo "a$((i + 1)): &a$((i + 1)) [*a$i, *a$i, *a$i, *a$i, *a$i, *a$i, *a$i, *a$i, *a$i]"
        i=$((i + 1))
    done
} >"$tmp/laughs.yaml"
fails 2 "laughs.yaml:6:" "more than 250000 values, those of aliases included" -- inspect "$tmp/laughs.yaml"
{
    echo 'a: &a [x]'
    repeat 10001 '- *a
' | sed '1s/^/b:\n/'
} >"$tmp/aliases.yaml"
fails 2 "aliases.yaml:10003:" "more than 10000 aliases" -- inspect "$tmp/aliases.yaml"
awk 'BEGIN { for (i = 0; i < 10000; i++) print "k" i ": " i }' >"$tmp/keys.yaml"
fails 2 "keys.yaml:1:" 'unknown key "k0"' -- inspect "$tmp/keys.yaml"
echo 'k10000: 0' >>"$tmp/keys.yaml"
fails 2 "keys.yaml:10001:" "more than 10000 keys in a mapping" -- inspect "$tmp/keys.yaml"
{
    printf 'a: ['
    repeat 250000 '1,'
    echo ']'
} >"$tmp/values.yaml"
fails 2 "values.yaml:1:" "more than 250000 values" -- inspect "$tmp/values.yaml"
repeat 100000 '[' >"$tmp/deep.yaml"
fails 2 "deep.yaml:1:" "nested deeper than 64 levels" -- inspect "$tmp/deep.yaml"
repeat 100000 '- ' >"$tmp/steps.yaml"
fails 2 "steps.yaml:1:" -- inspect "$tmp/steps.yaml"
awk 'BEGIN { for (i = 0; i < 300; i++) printf "%*sa:\n", i, "" }' >"$tmp/stairs.yaml"
fails 2 "stairs.yaml:" -- inspect "$tmp/stairs.yaml"
{
    echo 'a0: &a0 x'
    awk 'BEGIN { for (i = 1; i < 80; i++) print "a" i ": &a" i " [*a" i - 1 "]" }'
} >"$tmp/chain.yaml"
fails 2 "chain.yaml:6" "nested deeper than 64 levels" -- inspect "$tmp/chain.yaml"
text self.yaml 'a: &a [1, *a]\n'
fails 2 "self.yaml:1:12: alias *a stands inside of what it names" -- inspect "$tmp/self.yaml"
text none.yaml 'a: *b\nc: &b 1\n'
fails 2 "none.yaml:1:5: alias *b: nothing above it has the anchor &b" -- inspect "$tmp/none.yaml"
text twice.yaml 'a: {b: 1, "b": 2}\n'
fails 2 'twice.yaml:1:12: key "b" is given twice' -- inspect "$tmp/twice.yaml"
text tag.yaml 'seq: !!str 128\n'
fails 2 "tag.yaml:1:6: found a tag" -- inspect "$tmp/tag.yaml"
text number.yaml 'a: 1\n<<: 5\n'
fails 2 "number.yaml:2:1: <<: allowed: a mapping, or a list of mappings" -- inspect "$tmp/number.yaml"
dd if=/dev/zero bs=1048576 count=65 2>/dev/null | tr '\0' ' ' >"$tmp/large.yaml"
fails 2 "large.yaml: 68157440 bytes; allowed: up to 67108864" -- inspect "$tmp/large.yaml"

# Keys of a merge give way to a mapping's own, wherever they stand; aliases are copies.
cat >"$tmp/merge.yaml" <<'Y'
model: gpt2
cluster: dgx-h100-1
strategies:
  a: &a {batch: 2, seq: 64, world: 8}
  b: {batch: 4, <<: *a}
  c: {<<: *a, batch: 4}
  d: {<<: [{seq: 32}, *a]}
  e: *a
Y
works compare "$tmp/merge.yaml" --print-config --set strategies.e.batch=3
for want in 2:64 4:64 4:64 2:32 3:64; do echo "$want"; done >"$tmp/want"
awk '/batch:/ { b = $2 } /seq:/ { s = $2 } /^  [a-e]:/ { if (n++) print b ":" s } END { print b ":" s }' "$out" >"$tmp/got"
cmp -s "$tmp/want" "$tmp/got" || complain "merged keys: $(tr '\n' ' ' <"$tmp/got")"

# ---- JSON ----
{
    printf '{"scenario": '
    repeat 100000 '['
} >"$tmp/deep.json"
fails 2 "deep.json:1: nested deeper than 64 levels" -- memory "$tmp/deep.json"
{
    printf '{"scenario": ['
    repeat 1000001 '1,'
} >"$tmp/values.json"
fails 2 "values.json:1: more than 1000000 values" -- memory "$tmp/values.json"
text byte.json '{"scenario":\n"\377"}'
fails 2 "byte.json:2: byte 0xff is not UTF-8" -- memory "$tmp/byte.json"
text twice.json '{"kind": "node",\n "kind": "node"}'
fails 2 "twice.json:2: duplicate object key" -- sim "$TSR_SOURCE_DIR/experiments/small/llama.yaml" -s fsdp --set "cluster=$tmp/twice.json"
mkdir "$tmp/run"
text run/run.json '{"family": "llama", "family": "gpt2"}'
fails 2 "run.json:1: duplicate object key" -- export "$tmp/run" --out "$tmp/model"
text line.timeline.json '{"events": [], "events": []}'
fails 2 "line.timeline.json:1: duplicate object key" -- diff "$tmp/line.timeline.json" "$tmp/line.timeline.json"
if command -v gzip >/dev/null 2>&1; then
    dd if=/dev/zero bs=1048576 count=140 2>/dev/null | tr '\0' ' ' | gzip >"$tmp/bomb.timeline.json.gz"
    fails 2 "bomb.timeline.json.gz: its text has more than 100 times the bytes of the file" -- diff "$tmp/bomb.timeline.json.gz" "$tmp/bomb.timeline.json.gz"
fi

# ---- tables ----
text bytes.csv 'a,b\n1,\377\n'
fails 2 "bytes.csv:2: byte 0xff is not UTF-8" -- validate "$tmp/bytes.csv"
head='time_s,total_bytes,reserved_bytes\n0,512,1024\n'
mkdir "$tmp/one"
text one/memory.csv "$head"'0.5,\033,1024\n1,512,1024\n'
fails 2 "memory.csv:3: control character U+001B" -- diff "$tmp/one" "$tmp/one"
text one/memory.csv "$head"'0.5,"512,1024\n1,512,1024\n'
fails 2 "memory.csv:3: found a quote that does not end" -- diff "$tmp/one" "$tmp/one"
{
    # shellcheck disable=SC2059
    printf "$head"
    repeat 1048577 1
} >"$tmp/one/memory.csv"
fails 2 "memory.csv:3: a line of more than 1 MiB" -- diff "$tmp/one" "$tmp/one"

# ---- XML ----
xml() { # FILE WORD: as the topology of a cluster
    fails 2 "$@" -- sim "$TSR_SOURCE_DIR/experiments/small/llama.yaml" -s fsdp --set "cluster=$tmp/$file"
}
if "$TESSERA" sim "$TSR_SOURCE_DIR/experiments/small/llama.yaml" -s fsdp --set cluster=/nowhere.xml 2>&1 | grep -q "no XML"; then
    echo "left out: XML (no expat)"
else
    file=entity.xml
    text $file '<?xml version="1.0"?>\n<!DOCTYPE system [\n<!ENTITY l "x">]>\n<system>&l;</system>\n'
    xml "entity.xml:3: found a declaration of an entity; allowed: none"
    file=deep.xml
    repeat 100000 '<a>' >"$tmp/$file"
    xml "deep.xml:1: nested deeper than 64 levels"
    file=byte.xml
    text $file '<?xml version="1.0" encoding="ISO-8859-1"?>\n<system name="\344"/>\n'
    xml "byte.xml:2: byte 0xe4 is not UTF-8"
    file=hosts.xml
    cat >"$tmp/$file" <<'X'
<?xml version='1.0'?>
<platform version="4.1">
  <cluster id="c" prefix="n" suffix="" radical="0-3,5-10000000" speed="1f" bw="1GBps" lat="1us"/>
</platform>
X
    xml "hosts.xml:3: <cluster>: more than 16384 hosts"
    file=floyd.xml
    {
        echo '<platform version="4.1"><zone id="z" routing="Floyd">'
        awk 'BEGIN { for (i = 0; i < 5000; i++) print "<host id=\"n" i "\" speed=\"1f\"/>" }'
        echo '</zone></platform>'
    } >"$tmp/$file"
    xml "floyd.xml:1026: <host>: more than 1024 hosts in zones with routing Floyd"
fi

finish
