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
    limit = strlen(strcol(5)) ? real(strcol(5)) : 0, head = strcol(6), log_x = int($7), log_y = int($8), per_token = int($9), 1) nooutput
# Columns: 1 name, 2 step, 7 reserved, 8 fits, 11 and 12 place of the name, 13 its side, 14 whether
# a line leads to it, 15 seconds per token and GPU, 16 what it changes beside its speed. gnuplot
# warns of a curve without points: none is drawn that has none.
is(kind) = strcol(8) eq 'no' ? kind eq 'no' : strcol(16) eq 'none' ? kind eq 'yes' : kind eq 'other'
n_fit = 0; n_unfit = 0; n_other = 0; n_leaders = 0; n_left = 0; n_center = 0; n_right = 0
stats data every ::1 using (n_fit = n_fit + is('yes'), n_unfit = n_unfit + is('no'), n_other = n_other + is('other'), \
    n_leaders = n_leaders + int($14), n_left = n_left + (strcol(13) eq 'left'), \
    n_center = n_center + (strcol(13) eq 'center'), n_right = n_right + (strcol(13) eq 'right'), 1) nooutput

show_limit = limit > x0 && limit < x1

# The data file places the names for an area of 830 x 490 pixels.
width = 960
height = 664
set lmargin at screen 90.0 / width
set rmargin at screen (90.0 + 830) / width
set bmargin at screen 62.0 / height
set tmargin at screen (62.0 + 490) / height
set xrange [x0:x1]
set yrange [y0:y1]
set xlabel 'peak reserved memory (GiB)'
set ylabel per_token ? 'time per token and GPU (µs)' : 'step time (ms)'
set grid lc rgb 0xEEEEEE lw 0.8 lt 1
set key at screen 0.012, 1 - 64.0 / height left top horizontal Left reverse samplen 1.4 width 0 maxrows 1
set label 1 head at screen 0.012, 1 - 24.0 / height left font ',14' textcolor rgb ink
set label 2 'time against memory, simulated unless named -measured; lower left is better' at screen 0.012, 1 - 48.0 / height left textcolor rgb soft
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
    set label 3 sprintf('usable on the card: %.2f GiB', limit) at limit, y1 center offset 0, 0.7 textcolor rgb alarm
    if (limit_share < 0.12) { set label 3 left }
    if (limit_share > 0.88) { set label 3 right }
}
if (limit >= x1) {
    set label 3 sprintf('everything fits: usable on the card are %.2f GiB', limit) at graph 0.99, 0.025 right textcolor rgb alarm
}
if (limit > 0 && limit <= x0) {
    set label 3 sprintf('nothing fits: usable on the card are %.2f GiB', limit) at graph 0.99, 0.025 right textcolor rgb alarm
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
        for [i = 1:n_fit > 0] data every ::1 using (is('yes') ? x($7) : NaN):(y($2, $15)) \
            with points pt 7 ps 1.1 lc rgb 0x0072B2 title (limit > 0 ? 'fits' : 'strategy'), \
        for [i = 1:n_other > 0] data every ::1 using (is('other') ? x($7) : NaN):(y($2, $15)) \
            with points pt 6 ps 1.2 lw 2 lc rgb 0x0072B2 title 'changed (~ ^)', \
        for [i = 1:n_unfit > 0] data every ::1 using (is('no') ? x($7) : NaN):(y($2, $15)) \
            with points pt 2 ps 1.1 lw 2 lc rgb 0xD55E00 title 'does not fit', \
        for [i = 1:n_left > 0] data every ::1 using (strcol(13) eq 'left' ? $11 : NaN):12:1 \
            with labels left font ',11' textcolor rgb ink notitle, \
        for [i = 1:n_center > 0] data every ::1 using (strcol(13) eq 'center' ? $11 : NaN):12:1 \
            with labels center font ',11' textcolor rgb ink notitle, \
        for [i = 1:n_right > 0] data every ::1 using (strcol(13) eq 'right' ? $11 : NaN):12:1 \
            with labels right font ',11' textcolor rgb ink notitle
}
unset output
