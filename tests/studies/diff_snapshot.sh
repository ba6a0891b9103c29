#!/usr/bin/env bash
# diff against memory snapshots: one of a real run of PyTorch, which a strategy predicts to the byte,
# and of the program's own; changed and damaged ones.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
# shellcheck source=tests/studies/_figures.sh
. "$TSR_SOURCE_DIR/tests/studies/_figures.sh"
golden=$TSR_SOURCE_DIR/tests/golden-real
cat >"$tmp/llama.yaml" <<YAML
model: {name: "$golden/config.json"}
world: 4
batch: 2
seq: 64
precision: {param: bf16, reduce: f32}
optimizer: {name: adamw}
strategies: {fsdp: {}, checkpoint: {checkpoint: full}}
YAML
for name in whole late; do
    gzip -dc "$golden/snapshot-$name.pickle.gz" >"$tmp/$name.pickle" || complain "gzip"
done

# ---- a real run ----------------------------------------------------------------------------------

# What PyTorch allocated in its third step is what was predicted: at the start, at the peak, in each
# phase, by category; recorded from the start or only then.
for name in whole late; do
    works diff "$tmp/llama.yaml:fsdp" "$tmp/$name.pickle" --format json
    equal "peak, $name" "$(value "$out" total allocated_difference_bytes)" 0
    equal "reserved, $name" "$(value "$out" total reserved_difference_bytes)" 0
    equal "start, $name" "$(value "$out" start difference_bytes)" 0
    equal "kind, $name" "$(value "$out" b kind)" snapshot
    # All but 45 of its changes: autograd frees what a block saved in another order, and that opens
    # no gap.
    equal "found, $name" "$(($(value "$out" b changes) - $(value "$out" b changes_found)))" 45
    has "$out" '"gap": []'
    for list in categories owners phases; do
        sed -n "/^  \"$list\"/,/^  \]/s/.*\"difference_bytes\": //p" "$out" | sort -u >"$tmp/differ"
        equal "$list, $name" "$(tr -d ',\n' <"$tmp/differ")" 0
    done
done
has "$out" '"OptState"' '"model.layers.*"' '"optimizer"'
# Compressed, where the program was built with zlib.
checks=$((checks + 1))
if "$TESSERA" diff "$tmp/whole.pickle" "$golden/snapshot-whole.pickle.gz" >"$out" 2>"$err"; then
    has "$out" "B minus A: 0 allocated" "The curves never part" "optimizer"
else
    has "$err" "built without zlib"
fi
# Beside another strategy: where they part is said by module, what only the run has by its stack.
works diff "$tmp/llama.yaml:checkpoint" "$tmp/whole.pickle"
has "$out" "forward, model.layers.* (in 4 places)" "changes are the other run's"

# Another allocation in block 2: its size, its module, its stack.
python3 - "$tmp/whole.pickle" "$tmp" <<'PY' || complain "a snapshot cannot be changed"
import pickle, sys
whole, tmp = sys.argv[1:]
snapshot = pickle.load(open(whole, 'rb'))
for protocol in (2, 3, 4, 5):
    pickle.dump(snapshot, open('%s/protocol-%d.pickle' % (tmp, protocol), 'wb'), protocol)
trace = snapshot['device_traces'][0]
starts = [a['time_us'] for a in snapshot['external_annotations']
          if a['name'] == 'FSDP::post_forward (layers.2)' and a['stage'] == 'START']
at = next(i for i, e in enumerate(trace) if e['time_us'] > starts[-1])
frames = [{'name': 'keep', 'filename': '/home/user/extra.py', 'line': 7}]
more = [dict(trace[at], action=a, addr=1 << 46, size=3 << 20, frames=frames) for a in ('alloc', 'free_requested')]
trace[at:at] = more[:1]
stop = next(a['time_us'] for a in snapshot['external_annotations'] if a['name'].startswith('Optimizer.step')
            and a['time_us'] > starts[-1])
trace.insert(next(i for i, e in enumerate(trace) if e['time_us'] > stop), more[1])
pickle.dump(snapshot, open(tmp + '/extra.pickle', 'wb'))
# An input that is made after the first block's hook.
snapshot = pickle.load(open(whole, 'rb'))
trace = snapshot['device_traces'][0]
zero = [a['time_us'] for a in snapshot['external_annotations'] if a['name'].startswith('Optimizer.zero')][-1]
one = max(i for i, e in enumerate(trace) if e['action'] == 'alloc' and e['size'] == 1024 and e['time_us'] <= zero)
event = trace.pop(one)
hook = [a['time_us'] for a in snapshot['external_annotations'] if a['name'] == 'FSDP::pre_forward (layers.0)'][-1]
trace.insert(next(i for i, e in enumerate(trace) if e['time_us'] > hook), event)
pickle.dump(snapshot, open(tmp + '/moved.pickle', 'wb'))
PY
for protocol in 2 3 4 5; do
    works diff "$tmp/whole.pickle" "$tmp/protocol-$protocol.pickle"
    has "$out" "The curves never part"
done
works diff "$tmp/llama.yaml:fsdp" "$tmp/extra.pickle"
has "$out" "B minus A: +3.00 MiB allocated" "extra.py:7 keep: +3.00 MiB Unknown" "+3.00 MiB  forward, model.layers.*" \
    "+3.00 MiB  Unknown"

# What happens elsewhere is still the same: inputs are inputs.
works diff "$tmp/llama.yaml:fsdp" "$tmp/moved.pickle"
has "$out" "2.00 KiB    2.00 KiB           0  Inputs" "B minus A: 0 allocated"
grep -q "Unknown" "$out" && complain "an input that was moved is unknown"

# ---- the program's own ---------------------------------------------------------------------------

works compare "$tmp/llama.yaml" --set cluster=dgx-h100-1 --only fsdp --out "$tmp/out" --pictures none
works diff "$tmp/llama.yaml:fsdp" "$tmp/out/fsdp/snapshot.pickle"
has "$out" "B minus A: 0 allocated, 0 reserved" "The curves never part"
# Blocks that are larger than what was asked for, since a remainder was not split off, are so on both sides.
works sim "$tmp/llama.yaml" --strategy fsdp --set cluster=dgx-h100-1 --set seq=3000 --pictures none --out "$tmp/long"
works diff "$tmp/llama.yaml:fsdp" "$tmp/long/fsdp/snapshot.pickle" --set seq=3000
has "$out" "B minus A: 0 allocated, 0 reserved" "The curves never part"
works diff "$tmp/out/fsdp/snapshot.pickle" "$tmp/whole.pickle"
has "$out" "B minus A: 0 allocated, 0 reserved"

# ---- mistakes ------------------------------------------------------------------------------------

# bad NAME BYTES WORD...: a pickle (in printf's notation) and what is said of it.
bad() {
    # shellcheck disable=SC2059
    printf "$2" >"$tmp/$1.pickle"
    name=$1
    shift 2
    fails 2 "$tmp/$name.pickle: " "$@" -- diff "$tmp/whole.pickle" "$tmp/$name.pickle"
}
bad empty '' "found no pickle" "protocol 2 to 5"
bad text 'no pickle' "found no pickle"
bad new '\200\006N.' "another protocol"
bad cut '\200\004}(X' "byte 4: found the end of the file" "a whole pickle"
bad code '\200\004cos\nsystem\n(X\001\000\000\000xtR.' "byte 2: found code to run (operation 0x63)"
bad global '\200\004\214\002os\214\006system\223\214\001x\205R.' "code to run (operation 0x93)"
bad build '\200\004}}b.' "code to run (operation 0x62)"
bad bytes '\200\004C\001x.' "operation 0x43"
bad stack '\200\004s.' "an operation without its values"
bad memo '\200\004h\011.' "was not remembered"
bad far '\200\004Nr\377\377\377\177.' "remembered far away"
bad long '\200\004\212\011123456789.' "more than 64 bits"
bad longer '\200\004\212\012123456789\000.' "more than 64 bits"
bad unsigned '\200\004\212\011\377\377\377\377\377\377\377\377\000.' "has no events"
bad utf8 '\200\004\214\003a\377z.' "in a text: byte 0xff is not UTF-8"
bad two '\200\004NN.' "more values than one"
bad deep "\200\004$(awk 'BEGIN { while (i++ < 65) printf "(" }')." "more than 64 levels"
bad none '\200\004N.' "has no events"
bad loop '\200\004]\224h\000a.' "has no events"
python3 - "$tmp" <<'PY' || complain "no damaged snapshots"
import pickle, sys
def put(name, events, segments=()):
    pickle.dump({'device_traces': [events], 'segments': list(segments)}, open('%s/%s.pickle' % (sys.argv[1], name), 'wb'))
alloc = {'action': 'alloc', 'addr': 512, 'size': 10}
free = dict(alloc, action='free_requested')
put('size', [dict(alloc, size=-1)])
put('huge', [dict(alloc, size=(1 << 63) - 1)])
put('twice', [alloc, alloc])
put('freed', [alloc, free, free])
put('none-of-them', [{'action': 'oom'}])
put('segments', [dict(alloc, action='segment_alloc')])
put('no-size', [alloc], [{'blocks': []}])
PY
says() {
    name=$1
    shift
    fails 2 "$tmp/$name.pickle: event" "$@" -- diff "$tmp/whole.pickle" "$tmp/$name.pickle"
}
says size "has no address and size" "allowed: a snapshot"
says huge "has no address and size"
says twice "event 1: allocates what is not free"
says freed "event 2: frees what is not allocated"
says none-of-them "is no allocation"
says segments "reserves more than the segments"
says no-size "a segment without a size"
# A small file that is much once it is read: 14 KB of gzip, a pickle of values of a byte each.
head -c 14000000 /dev/zero | tr '\0' N | { printf '\200\004](' && cat && printf e.; } >"$tmp/many.pickle"
gzip -9 <"$tmp/many.pickle" >"$tmp/many.pickle.gz"
fails 2 "many.pickle.gz: its text has more than 100 times the bytes of the file" -- diff "$tmp/whole.pickle" "$tmp/many.pickle.gz"
fails 2 "many.pickle: byte" "more values than a third of its bytes" -- diff "$tmp/whole.pickle" "$tmp/many.pickle"
head -c 100000 "$tmp/whole.pickle" >"$tmp/half.pickle"
fails 2 "$tmp/half.pickle: byte" "the end of the file" -- diff "$tmp/whole.pickle" "$tmp/half.pickle"
head -c 9000 "$golden/snapshot-whole.pickle.gz" >"$tmp/half.pickle.gz"
fails 2 "$tmp/half.pickle.gz" -- diff "$tmp/whole.pickle" "$tmp/half.pickle.gz"
finish
