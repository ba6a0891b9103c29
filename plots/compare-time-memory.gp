# compare-time-memory.gp: strategies as points, step time against memory. Draws compare.csv,
# compare-frame.csv and compare-front.csv of a study:
#     gnuplot -e "dir='OUT'; out='compare-time-memory'" plots/compare-time-memory.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'compare-time-memory'
load ARG0[1:strlen(ARG0) - strlen('compare-time-memory.gp')].'style.gp'

data = dir.'/compare.csv'
frame = dir.'/compare-frame.csv'
front = dir.'/compare-front.csv'

stats frame every ::1::1 using (x0 = $1, x1 = $2, y0 = $3, y1 = $4, \
    limit = strlen(strcol(5)) ? real(strcol(5)) : 0, head = strcol(6), log_x = int($7), log_y = int($8), per_token = int($9), measured = int($10), 1) nooutput
# Columns: 1 name, 2 step, 7 reserved, 8 fits, 11 and 12 place of the name, 13 its side, 14 whether
# a line leads to it, 15 seconds per token and GPU, 16 what it changes beside its speed, 17 the label:
# the names of all points there, 18 the number that stands for a long name. gnuplot warns of a curve without points: none is drawn that has none.
kinds = 'yes retries unknown other retries_other no'
array of_kind[6]
array mark[6] = [7, 9, 5, 6, 8, 2]
array colour[6] = [0x0072B2, 0xE69F00, 0x8C8C8C, 0x0072B2, 0xE69F00, 0xD55E00]
kind_of(fits, changes) = fits eq 'no' ? 6 : fits eq 'unknown' && limit > 0 ? 3 : \
    fits eq 'retries' ? (changes eq 'none' ? 2 : 5) : changes eq 'none' ? 1 : 4
is(k) = kind_of(strcol(8), strcol(16)) == k
do for [k = 1:6] {
    of_kind[k] = 0
    stats data every ::1 using (of_kind[k] = of_kind[k] + is(k), 1) nooutput
}
title_of(k) = k == 1 ? (limit > 0 ? 'fits' : 'strategy') : k == 2 ? 'fits with retries' : k == 3 ? 'unknown (?)' : \
    k == 4 ? 'changed (~ ^)' : k == 5 ? 'retries, changed (~ ^)' : 'does not fit'
n_marks = 0
do for [k = 1:6] { n_marks = n_marks + (of_kind[k] > 0) }
n_leaders = 0; n_left = 0; n_center = 0; n_right = 0
n_listed = 0
stats data every ::1 using ( \
    number = strlen(strcol(18)) > 0, n_listed = n_listed + number, \
    n_leaders = n_leaders + int($14), n_left = n_left + (strcol(13) eq 'left'), \
    n_center = n_center + (strcol(13) eq 'center'), n_right = n_right + (strcol(13) eq 'right'), 1) nooutput

show_limit = limit > x0 && limit < x1
card = measured ? 'modelled card' : 'card'

# The data file places the names for an area of 830 x 490 pixels. Below it the names that are long.
width = 960
about = 'time against memory, '.(measured ? 'measured: a run on the ranks of its machine' : 'simulated').'; lower left is better'
more = head_room(head, width)
key_room = n_marks > 3 ? 20 + 16 * (n_marks > 5) : 0
long_letters = 130
long_lines = 0
stats data every ::1 using (long_lines = long_lines + (strlen(strcol(18)) ? lines(strcol(18).'  '.strcol(1), long_letters) : 0), 1) nooutput
under = long_lines > 0 ? 17 * long_lines + 12 : 0
height = 664.0 + more + key_room + under
# The legend of the numbers, one label a name. Not below: `stats` sees only what is in the ranges.
at = 0
if (n_listed > 0) {
    do for [i = 1:STATS_records] {
        stats data every ::i::i using (text = strlen(strcol(18)) ? strcol(18).'  '.strcol(1) : '', 1) nooutput
        if (strlen(text)) {
            set label 100 + i fold(text, long_letters) at screen 0.012, (under - 12.0 - 17 * at) / height left font ',11' textcolor rgb ink
            at = at + lines(text, long_letters)
        }
    }
}

set lmargin at screen 90.0 / width
set rmargin at screen (90.0 + 830) / width
set bmargin at screen (62.0 + under) / height
set tmargin at screen (62.0 + under + 490) / height
set xrange [x0:x1]
set yrange [y0:y1]
set xlabel 'peak reserved memory (GiB'.(log_x ? ', log scale' : '').')'
set ylabel (per_token ? 'time per token and '.(measured ? 'rank' : 'GPU').' (µs' : 'step time (ms').(log_y ? ', log scale' : '').')'
set grid lc rgb 0xEEEEEE lw 0.8 lt 1
set key at screen 0.012, 1 - (64.0 + more) / height left top horizontal Left reverse samplen 1.4 width 0 maxrows 1
set label 1 head_text(head, width) at screen 0.012, 1 - 24.0 / height left font ',14' textcolor rgb ink
set label 2 about at screen 0.012, 1 - (48.0 + more) / height left textcolor rgb soft
limit_share = !show_limit ? 0 : log_x ? log(limit / x0) / log(x1 / x0) : (limit - x0) / (x1 - x0)
if (log_x) {
    set logscale x
    set xtics () nomirror
    do for [e = -3:6] { do for [m in '1 1.5 2 3 4 5 7'] {
        v = real(m) * 10.0 ** e
        if (v > x0 && v < x1) { set xtics add (sprintf('%g', v) v) }
    } }
}
if (log_y) {
    set logscale y
    set ytics () nomirror
    do for [e = -3:6] { do for [m in '1 1.5 2 3 4 5 7'] {
        v = real(m) * 10.0 ** e
        if (v > y0 && v < y1) { set ytics add (sprintf('%g', v) v) }
    } }
}
if (show_limit) {
    set object 1 rectangle from limit, y0 to x1, y1 fs solid noborder fc rgb 0xFBEDEA behind
    set arrow 1 from limit, y0 to limit, y1 nohead lc rgb alarm lw 1.5 dt (8, 4) back
    set label 3 sprintf('usable on the %s: %.2f GiB', card, limit) at limit, y1 center offset 0, 0.7 textcolor rgb alarm
    if (limit_share < 0.12) { set label 3 left }
    if (limit_share > 0.88) { set label 3 right }
}
if (limit >= x1) {
    far_text = of_kind[3] + of_kind[6] == 0 ? 'everything fits: usable on the %s are %.2f GiB' : 'usable on the %s: %.2f GiB, right of the picture'
    set label 3 sprintf(far_text, card, limit) at x1, y1 right offset 0, 0.7 textcolor rgb alarm
}
if (limit > 0 && limit <= x0) {
    set label 3 sprintf('nothing fits: usable on the %s are %.2f GiB', card, limit) at x0, y1 left offset 0, 0.7 textcolor rgb alarm
}

x(bytes) = bytes / GiB
y(step, token) = per_token ? token * 1e6 : step * 1e3

do for [kind in formats] {
    eval use(kind, width, height)
    set output base.'.'.kind
    plot front every ::1 using (x($1)):(y($2, $4)) \
            with steps lc rgb 0x009E73 lw 1.5 title 'Pareto front', \
        for [i = 1:n_leaders > 0] data every ::1 using (int($14) ? x($7) : NaN):(y($2, $15)):($11 - x($7)):($12 - y($2, $15)) \
            with vectors nohead lc rgb soft lw 0.7 notitle, \
        for [k = 1:6] for [i = 1:of_kind[k] > 0] data every ::1 using (is(k) ? x($7) : NaN):(y($2, $15)) \
            with points pt mark[k] ps 1.2 lw 2 lc rgb colour[k] title title_of(k), \
        for [i = 1:n_left > 0] data every ::1 using (strcol(13) eq 'left' ? $11 : NaN):12:17 \
            with labels left font ',11' textcolor rgb ink notitle, \
        for [i = 1:n_center > 0] data every ::1 using (strcol(13) eq 'center' ? $11 : NaN):12:17 \
            with labels center font ',11' textcolor rgb ink notitle, \
        for [i = 1:n_right > 0] data every ::1 using (strcol(13) eq 'right' ? $11 : NaN):12:17 \
            with labels right font ',11' textcolor rgb ink notitle
}
unset output
