#!/bin/sh
# exec/cuda/architectures.cmake: which GPUs kernels are built for: those that nvidia-smi (a stand-in here) finds, H100's and PTX
# without it, all of them where that is asked for, or a list.
set -u
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cmake=$(command -v cmake) || exit 77
mkdir "$tmp/bin"
cat >"$tmp/find.cmake" <<C
include($TSR_SOURCE_DIR/exec/cuda/architectures.cmake)
tsr_cuda_architectures(found "\${WISH}")
message(NOTICE "\${found}")
C

bad=0
# finds WISH WANT: with what stands in $tmp/bin.
finds() {
    got=$(PATH="$tmp/bin" "$cmake" "-DWISH=$1" -P "$tmp/find.cmake" 2>&1)
    [ "$got" = "$2" ] || { echo "FAILED: $1: found \"$got\", not \"$2\""; bad=1; }
}
# says STATUS TEXT: what nvidia-smi prints.
says() {
    printf '#!/bin/sh\nprintf "%s"\nexit %s\n' "$2" "$1" >"$tmp/bin/nvidia-smi"
    chmod +x "$tmp/bin/nvidia-smi"
}

finds AUTO '90a-real;90-virtual'
says 0 '9.0\\n9.0\\n'
finds AUTO 90a-real
says 0 '8.0\\n8.9\\n9.0\\n'
finds AUTO '80-real;89-real;90a-real'
says 0 '7.5\\n'
finds AUTO '90a-real;90-virtual'
says 0 '12.0\\n'
finds AUTO 120-real
says 9 'NVIDIA-SMI has failed: driver 9.0\\n'
finds AUTO '90a-real;90-virtual'
finds ALL '80-real;90a-real;90-virtual'
finds '89-real;90a-real' '89-real;90a-real'
exit $bad
