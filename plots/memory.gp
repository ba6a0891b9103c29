# memory.gp: memory over the steady step: allocated bytes stacked by owner, what the allocator holds,
# what is in use on the device, the card's limit. Draws memory-plot.csv, in-use-plot.csv, phases.csv
# and peak.csv of a strategy:   gnuplot -e "dir='OUT/STRATEGY'; out='memory'" plots/memory.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'memory'
load ARG0[1:strlen(ARG0) - strlen('memory.gp')].'style.gp'

data = dir.'/memory-plot.csv'
in_use = dir.'/in-use-plot.csv'
phases = dir.'/phases.csv'
peaks = dir.'/peak.csv'

# The peak and the card's limit (0: unknown).
stats peaks every ::1::1 using (unit = unit_bytes($6 > $2 ? $6 : $2), peak_ms = $1 * 1e3, peak = $2 / unit, module = strcol(3), \
    phase = strcol(4), limit = strlen(strcol(5)) ? real(strcol(5)) / unit : 0, \
    reserved = $6 / unit, step_ms = $7 * 1e3, head = strcol(8), used = $9 / unit, \
    operation = strcol(10), measured = int($11), 1) nooutput
bytes_in = unit == GiB ? 'GiB' : 'MiB'

# Names of the columns: the head of the file is its row 0; total and reserved are the last two.
stats data every ::1 using 1 nooutput
last = STATS_columns - 2
array colour[last]
array name[last]
array seen[last] # an owner of a few kilobytes is no line of the picture, and none of the legend
do for [i = 2:last] {
    stats data every ::0::0 using (key = strcol(i), 0) nooutput
    colour[i] = category_colour(key)
    name[i] = category_title(key)
    stats data every ::1 using i nooutput
    seen[i] = STATS_max > 0.002 * peak * unit
}

# A limit far above the curve would flatten it; then it is only named.
highest = reserved > peak ? reserved : peak
show_limit = limit > 0 && limit < 2.5 * highest
top = highest > 0 ? 1.13 * (show_limit && limit > highest ? limit : highest) : 1
set xrange [0:step_ms]
set yrange [0:top]
set xlabel 'time in the step (ms)'
set ylabel sprintf('memory (%s)', bytes_in)
unset key
set lmargin at screen 0.07
set rmargin at screen 0.785
# A title of several lines makes the picture higher; all below it stays: shares of 500 pixels.
more = head_room(head, 950)
height = 500.0 + more
up(share) = share * 500 / height
set bmargin at screen up(0.115)
set tmargin at screen up(0.80)
set label 3 head_text(head, 950) at screen 0.07, 1 - 22.5 / height left font ',14' textcolor rgb ink
set label 4 sprintf('memory of a %s over one step, %s; reserved: at most %.2f %s, in use: %.2f %s', measured ? 'rank' : 'GPU', \
    measured ? 'measured' : 'simulated', reserved, bytes_in, used, bytes_in) at screen 0.07, up(0.905) left textcolor rgb soft

band(phase) = \
    phase[1:7] eq 'forward'   ? 0xFFFFFF : \
    phase[1:8] eq 'backward'  ? 0xF3F3F3 : \
    phase[1:4] eq 'loss'      ? 0xDEDEDE : \
    phase[1:9] eq 'optimizer' ? 0xDEDEDE : 0xE9E9E9

# The legend by hand, in the order of the stack: gnuplot's own drops what is higher than the plot.
# Above the owners: what the lines are, with their peaks.
shown = 0
do for [i = 2:last] { shown = shown + seen[i] }
pitch = shown + 3 > 15 ? 0.66 / (shown + 3) : 0.044
row = 0
below = 0.4575 - pitch * (shown + 3.4) / 2
do for [i = 2:last] {
    if (seen[i]) {
        y = below + pitch * (row + 0.5)
        set object 10 + i rectangle from screen 0.805, up(y - 0.013) to screen 0.826, up(y + 0.013) fs solid noborder fc rgb colour[i] front
        set label 10 + i name[i] at screen 0.836, up(y) left textcolor rgb ink front
        row = row + 1
    }
}
array line_name[3] = ['in use on the device', 'allocated', 'reserved']
do for [k = 1:3] {
    y = below + pitch * (shown + k - 0.1)
    set label 40 + k line_name[k] at screen 0.836, up(y) left textcolor rgb ink front
    if (k == 1) { set arrow 10 from screen 0.803, up(y) to screen 0.828, up(y) nohead lc rgb 'white' lw 3 front }
    set arrow 10 + k from screen 0.803, up(y) to screen 0.828, up(y) nohead front
}
set arrow 11 lc rgb ink lw 1.6 dt (3, 2)
set arrow 12 lc rgb ink lw 0.8
set arrow 13 lc rgb 0x7A3300 lw 1.6

stack(i) = sum [k = 2:i] column(k) / unit

# The peak's name goes where there is room beside it, above a line that is near; the limit's name to
# the side that is left. Widths in shares of the plot, 715 pixels.
set style textbox opaque noborder fillcolor rgb 'white' margins 1.0, 0.6
peak_where = module ne '(' . phase . ')' ? cut(module, 60) . ', ' . phase : \
    phase . (strlen(operation) ? ', ' . operation : '')
peak_text = cut(sprintf('peak %.2f %s: %s', peak, bytes_in, peak_where), 96)
peak_at = peak_ms / step_ms
peak_width = strlen(peak_text) * 7.0 / 715
to_left = peak_at + peak_width > 0.97 && peak_at > 0.5
from = to_left ? peak_at - 0.015 - peak_width : peak_at + 0.015
if (from < 0.01 || from + peak_width > 0.99) { to_left = 0; from = peak_width < 0.98 ? 0.99 - peak_width : 0.01 }
peak_y = peak
do for [pass = 1:2] {
    if (reserved > peak_y && reserved - peak_y < 0.08 * top) { peak_y = reserved }
    if (show_limit && limit > peak_y && limit - peak_y < 0.08 * top) { peak_y = limit }
}
peak_y = peak_y + 0.045 * top
set label 1 peak_text at (from + (to_left ? peak_width : 0)) * step_ms, peak_y textcolor rgb ink front boxed
if (to_left) { set label 1 right } else { set label 1 left }
set label 5 '' at peak_ms, peak point pt 7 ps 0.7 lc rgb ink front

limit_left = from + peak_width > 0.8 && from > 0.2
limit_text = sprintf('usable: %.2f GiB', limit * unit / GiB)
if (show_limit) {
    set arrow 1 from 0, limit to step_ms, limit nohead lc rgb alarm lw 1.5 dt (8, 4) front
    set label 2 limit_text at (limit_left ? 0.012 : 0.988) * step_ms, limit + 0.04 * top textcolor rgb alarm front boxed
    if (limit_left) { set label 2 left } else { set label 2 right }
    if (peak_width > 0.7) { set label 2 at (limit_left ? 0.012 : 0.988) * step_ms, limit - 0.04 * top }
}
if (limit > 0 && !show_limit) {
    set label 2 limit_text."\n".'(above the picture)' at screen 0.803, up(0.905) left textcolor rgb alarm
}

do for [kind in formats] {
    eval use(kind, 1000, height)
    set output base.'.'.kind
    plot phases every ::1 using (0):(0):($2 * 1e3):($3 * 1e3):(0):(top):(band(strcol(1))) \
            with boxxyerror fs solid noborder lc rgb variable notitle, \
        for [i = last:2:-1] data every ::1 using ($1 * 1e3):(seen[i] ? stack(i) : NaN) \
            with filledcurves y1=0 fs solid noborder lc rgb colour[i] notitle, \
        data every ::1 using ($1 * 1e3):(column(last + 1) / unit) with lines lc rgb ink lw 0.8 notitle, \
        data every ::1 using ($1 * 1e3):(column(last + 2) / unit) with lines lc rgb 0x7A3300 lw 1.6 notitle, \
        in_use every ::1 using ($1 * 1e3):($2 / unit) with steps lc rgb 0xB0FFFFFF lw 2.4 notitle, \
        in_use every ::1 using ($1 * 1e3):($2 / unit) with steps lc rgb ink lw 1.6 dt (3, 2) notitle, \
        for [row = 0:2] phases every ::1 using ($5 == row ? $4 * 1e3 : NaN):(top):1 \
            with labels offset 0, 0.8 + row textcolor rgb ink notitle
}
unset output
