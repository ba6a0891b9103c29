# plan.gp: the configurations of a search, time per token against memory, with the Pareto front and
# the budget. Draws plan.csv, plan-front.csv and plan-frame.csv of `tessera plan --out`:
#     gnuplot -e "dir='OUT'; out='plan'" plots/plan.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'plan'
load ARG0[1:strlen(ARG0) - strlen('plan.gp')].'style.gp'

data = dir.'/plan.csv'
front = dir.'/plan-front.csv'
frame = dir.'/plan-frame.csv'

stats frame every ::1::1 using (budget = $1, is_card = int($2), n_all = int($3), n_emitted = int($4), \
    n_simulated = int($5), head = strcol(6), 1) nooutput

# plan.csv: 1 number, 3 state, 4 the number that has the same programs, 5 fits, 6 front, 8 needed, 9 least time per token, 10 time per token,
# 16 marked.
# plan-front.csv: 1 rank, 2 settings, 3 needed, 4 time per token.
is_out(i) = strcol(3) eq 'emitted' && strcol(5) eq 'yes' && strcol(4) eq strcol(1)
gib(bytes) = bytes / GiB
us(s) = s * 1e6
n_fit = 0; n_unfit = 0; n_out = 0; n_front = 0; n_retry = 0; n_marked = 0
is_marked(i) = strcol(3) eq 'simulated' && strcol(16) eq 'yes' && strcol(5) ne 'no'
is_fit(i, word) = strcol(3) eq 'simulated' && strcol(5) eq word && !is_marked(0)
x0 = 1e300; x1 = 0; y0 = 1e300; y1 = 0
low(a, b) = a < b ? a : b
high(a, b) = a > b ? a : b
stats data every ::1 using ( \
    is_point = strcol(3) eq 'simulated', y = is_point ? us(column(10)) : 0, x = strlen(strcol(8)) ? gib(column(8)) : 0, \
    n_fit = n_fit + (is_fit(0, 'yes') && strcol(6) ne 'yes'), n_marked = n_marked + is_marked(0), n_unfit = n_unfit + (is_point && strcol(5) eq 'no'), \
    n_retry = n_retry + is_fit(0, 'retries'), \
    n_out = n_out + is_out(0), \
    x0 = is_point ? low(x0, x) : x0, x1 = is_point ? high(x1, x) : x1, \
    y0 = is_point ? low(y0, y) : y0, y1 = is_point ? high(y1, y) : y1, 1) nooutput
stats front every ::1 using (n_front = n_front + 1, 1) nooutput

# Room on all sides; the budget is shown when it is near.
wide = x1 > x0 ? x1 - x0 : 0.2 * x1
limit = gib(budget)
show_limit = limit < x1 + 0.5 * wide && limit > x0
x1 = show_limit ? high(x1, limit) : x1
x0 = high(x0 - 0.08 * wide, 0); x1 = x1 + 0.08 * wide
room = high(1.1, (y1 / y0) ** 0.1)
y0 = y0 / room; y1 = y1 * room

listed = n_front < 24 ? n_front : 24
width = 960
more = head_room(head, width)
height = 570.0 + 17 * listed + more
set lmargin at screen 90.0 / width
set rmargin at screen (90.0 + 830) / width
set tmargin at screen 1 - (110.0 + more) / height
set bmargin at screen 1 - (110.0 + more + 390) / height
set xlabel 'memory needed: reserved, context, NCCL (GiB)'
set ylabel 'time per token and GPU (µs, log scale)'
set logscale y
set ytics () nomirror
set grid lc rgb 0xEEEEEE lw 0.8 lt 1
# Marks at round values, at least 16 pixels apart.
last = 0
do for [e = -3:8] { do for [m in '1 1.1 1.2 1.3 1.4 1.5 1.75 2 2.5 3 4 5 6 7 8 9'] {
    v = real(m) * 10.0 ** e
    if (v > y0 && v < y1 && (last == 0 || 390 * log(v / last) / log(y1 / y0) >= 16)) { set ytics add (sprintf('%g', v) v); last = v }
} }
set key at screen 0.012, 1 - (64.0 + more) / height left top horizontal Left reverse samplen 1.4 width 0 maxrows 1
set label 1 head_text(head, width) at screen 0.012, 1 - 24.0 / height left font ',14' textcolor rgb ink
set label 2 sprintf('%d configurations: %d emitted, %d simulated; lower left is better; numbers: ranks, the fastest first; ruled out: at least this slow', n_all, n_emitted, n_simulated) \
    at screen 0.012, 1 - (48.0 + more) / height left textcolor rgb soft
if (show_limit) {
    set object 1 rectangle from limit, y0 to x1, y1 fs solid noborder fc rgb 0xFBEDEA behind
    set arrow 1 from limit, y0 to limit, y1 nohead lc rgb alarm lw 1.5 dt (8, 4) back
    set label 3 sprintf('%s: %.2f GiB', is_card ? 'budget of the card' : 'budget', limit) at limit, y1 right offset -0.5, -0.9 textcolor rgb alarm
    if ((limit - x0) / (x1 - x0) < 0.3) { set label 3 left offset 0.5, -0.9 }
}
if (!show_limit) {
    set label 3 sprintf('%s: %.2f GiB', is_card ? 'budget of the card' : 'budget', limit) at graph 0.99, 0.96 right textcolor rgb alarm
}
# The front lies in its file from small and slow to large and fast. A number that would stand on one before it is left out:
# it is in the list.
array taken_x[24]
array taken_y[24]
n_taken = 0
do for [i = 1:listed] {
    stats front every ::(n_front - i + 1)::(n_front - i + 1) using \
        (line = sprintf('%d  %s', int($1), strcol(2)), at_x = gib($3), at_y = us($4), number = int($1), 1) nooutput
    set label 10 + i cut(line, 135) at screen 0.1, 1 - (550.0 + more + 17 * i) / height left font ',11' textcolor rgb ink
    px = 830 * (at_x - x0) / (x1 - x0); py = 390 * log(at_y / y0) / log(y1 / y0); is_free = 1
    do for [k = 1:n_taken] { if (abs(px - taken_x[k]) < 24 && abs(py - taken_y[k]) < 15) { is_free = 0 } }
    if (is_free) {
        n_taken = n_taken + 1; taken_x[n_taken] = px; taken_y[n_taken] = py
        set label 100 + i sprintf('%d', number) at at_x, at_y right offset -0.6, -0.7 font ',11' textcolor rgb ink
    }
}
if (listed < n_front) {
    set label 99 sprintf('and %d more', n_front - listed) at screen 0.93, 1 - (550.0 + more + 17 * listed) / height right font ',11' textcolor rgb soft
}

# Not before: `stats` counts only what is inside the ranges.
set xrange [x0:x1]
set yrange [y0:y1]

do for [kind in formats] {
    eval use(kind, width, height)
    set output base.'.'.kind
    plot front every ::1 using (gib($3)):(us($4)) \
            with steps lc rgb 0x009E73 lw 1.5 title 'Pareto front', \
        for [i = 1:n_out > 0] data every ::1 using (is_out(0) ? gib($8) : NaN):(us($9)) \
            with points pt 6 ps 0.5 lc rgb 0xAAAAAA title 'ruled out', \
        for [i = 1:n_fit > 0] data every ::1 using (is_fit(0, 'yes') && strcol(6) ne 'yes' ? gib($8) : NaN):(us($10)) \
            with points pt 7 ps 0.7 lc rgb 0x56B4E9 title 'fits', \
        for [i = 1:n_unfit > 0] data every ::1 using (strcol(3) eq 'simulated' && strcol(5) eq 'no' ? gib($8) : NaN):(us($10)) \
            with points pt 2 ps 0.7 lw 1.5 lc rgb 0xD55E00 title 'does not fit', \
        front every ::1 using (gib($3)):(us($4)) \
            with points pt 7 ps 1.1 lc rgb 0x0072B2 title 'on the front', \
        for [i = 1:n_retry > 0] data every ::1 using (is_fit(0, 'retries') ? gib($8) : NaN):(us($10)) \
            with points pt 9 ps 1.1 lc rgb 0xE69F00 title 'fits with retries', \
        for [i = 1:n_marked > 0] data every ::1 using (is_marked(0) ? gib($8) : NaN):(us($10)) \
            with points pt 4 ps 0.9 lw 1.3 lc rgb 0xCC79A7 title 'needs another stack'
}
unset output
