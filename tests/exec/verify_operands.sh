#!/usr/bin/env bash
# `tessera run --serial --verify-operands`: the same losses as without, also with saving, loading
# and evaluation; without --serial it is refused.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
