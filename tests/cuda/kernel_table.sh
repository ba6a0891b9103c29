#!/usr/bin/env bash
# tests/gpu/kernels.tsv: registers, stack, shared memory, accesses to local memory and loads of 16 bytes of every kernel, from
# the machine code that this build has for sm_90a. A change of a kernel changes the table: bring it up to date knowingly.
#   TSR_SOURCE_DIR=. TSR_BUILD_DIR=build tests/cuda/kernel_table.sh --update
# Exit 77: skipped, there is no cuobjdump, no code for sm_90a, or another nvcc than the table's.
: "${TSR_SOURCE_DIR:?the source tree}" "${TSR_BUILD_DIR:?the build}"
table=$TSR_SOURCE_DIR/tests/gpu/kernels.tsv
skip() {
    echo "skipped: $1"
    exit 77
}
command -v python3 >/dev/null || skip "no python3"
nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' "$TSR_BUILD_DIR/CMakeCache.txt")
[ -x "$nvcc" ] || skip "no nvcc"
release=$("$nvcc" --version | sed -n 's/.*release [0-9.]*, V//p')
fetched=$TSR_SOURCE_DIR/.cache/cuobjdump/nvidia/cu13/bin/cuobjdump # experiments/setup.sh: tsr_cuobjdump
cuobjdump=$(command -v cuobjdump || ls "$(dirname "$nvcc")/cuobjdump" 2>/dev/null || ls "$fetched" 2>/dev/null)
[ -x "$cuobjdump" ] || skip "no cuobjdump"
[ "${1:-}" = --update ] || grep -q "^# nvcc $release\$" "$table" || skip "nvcc $release is not that of $table"
found=$(mktemp) || exit 1
trap 'rm -f "$found"' EXIT
{
    echo "# Machine code of the kernels for sm_90a; columns: cubins.py. Written by tests/cuda/kernel_table.sh --update."
    echo "# nvcc $release"
    python3 "$TSR_SOURCE_DIR/tests/gpu/cubins.py" "$cuobjdump" "$TSR_BUILD_DIR"/exec/cuda/CMakeFiles/tsr_cuda_kernels.dir/kernels/*/*.o
} >"$found" || skip "no code for sm_90a"
if [ "${1:-}" = --update ]; then
    cp "$found" "$table"
elif ! diff "$table" "$found"; then
    echo "FAILED: $table: found other kernels (>) than it has (<); allowed: the same, or a new table (kernel_table.sh --update)"
    exit 1
fi
# In f32 nothing leaves the registers for every pack. Three kernels may: some operations of "rare" call functions, as
# log_softmax_torn does for the ends of rows, and the sine of a large angle (rotary_table) looks its bits of pi up.
if ! awk -F'\t' '/^tsr_/ && !/_f64\t/ && !/_rare_f32|_rotary_table|_log_softmax_torn/ && $7 > 0 { print; bad = 1 } END { exit bad }' "$found"; then
    echo "FAILED: the kernels above access local memory in an innermost loop: found local_in_inner as in column 7; allowed: 0"
    exit 1
fi
echo "$(($(wc -l <"$found") - 3)) kernels"
