#!/usr/bin/env bash
# Files are opened, made, moved and removed in sim/base only: elsewhere no code of simulator, executors
# and program calls the system for it, but for what stands below with its reason.
set -u
cd "$TSR_SOURCE_DIR" || exit 1
allowed=$(sed 's/ *#.*//' <<'LIST' | grep .
exec/data/corpus.c scandir                      # names of a user's texts, in order; lstat() below it finds links
exec/data/corpus.c lstat
exec/launch/launch_spawn.c open                 # /dev/null
exec/world/carrier_shm.c open                   # shared memory between ranks
experiments/cli/run/run_prepare.c fopen         # /sys/fs/cgroup
experiments/study/base/csv.c fopen              # /dev/null: an empty table
experiments/study/base/interrupt.c unlinkat     # in a handler of signals
experiments/study/base/paths.c opendir          # names to suggest
experiments/study/base/pool.c open              # /dev/null
experiments/study/overlap/overlap_read.c opendir # names to suggest
experiments/study/report/report_plots.c open    # /dev/null
experiments/study/report/report_plots.c tmpfile # has no name
LIST
)
calls='opendir|fdopendir|open|openat|creat|fopen|freopen|tmpfile|popen|gzopen|unlink|unlinkat|remove|rename|renameat|mkdir|mkdirat|rmdir|mkstemps?|mkdtemp|mkostemps?|scandir|lstat|ftw|nftw|truncate|symlink|link|json_load_file|json_dump_file|json_dumpf'
found=$(find engine sim exec experiments \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) -not -path 'sim/base/*' -print0 |
    xargs -0 grep -nE "(^|[^A-Za-z0-9_>.])($calls)\\(" | grep -vE '^[^:]*:[0-9]*: *(/\*|\*|//)|tsr_status |/\*.*\)' |
    sed -E "s/^([^:]*):[0-9]*:.*[^A-Za-z0-9_>.]($calls)\\(.*/\\1 \\2/" | sort -u)
bad=$(comm -23 <(printf '%s\n' "$found") <(printf '%s\n' "$allowed" | sort -u))
old=$(comm -13 <(printf '%s\n' "$found") <(printf '%s\n' "$allowed" | sort -u))
[ -z "$bad" ] || printf 'calls the system for a file, outside of sim/base: %s\n' "$bad"
[ -z "$old" ] || printf 'is allowed, and not there: %s\n' "$old"
[ -z "$bad$old" ]
