# run.gp: memory over a whole run, section by section: the device's stacked by owner, reserved memory
# as a line and a mark at the peak of each section; in a strip of its own, with its own scale, the
# host's. Every section has the same width. Draws run-plot.csv and run-peaks.csv of a
# strategy:   gnuplot -e "dir='OUT/STRATEGY'; out='run'" plots/run.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'run'
load ARG0[1:strlen(ARG0) - strlen('run.gp')].'style.gp'

data = dir.'/run-plot.csv'
peaks = dir.'/run-peaks.csv'

stats peaks every ::1 using (head = strcol(13), $4) nooutput
sections = STATS_records
peak = STATS_max / GiB
stats peaks every ::1 using (strlen(strcol(12)) ? $12 : 0) nooutput
limit = STATS_max / GiB
top = peak
stats peaks every ::1 using 5 nooutput # reserved
top = STATS_max / GiB > top ? STATS_max / GiB : top
host_top = 0
do for [c in '6 8'] { # host, page-locked
    stats peaks every ::1 using int(c) nooutput
    host_top = STATS_max / GiB > host_top ? STATS_max / GiB : host_top
}
host_top = host_top > 0 ? 1.15 * host_top : 1
show_limit = limit > 0 && limit < 2.5 * top
top = 1.12 * (show_limit && limit > top ? limit : top)
if (top <= 0) { top = 1 }

# Owners are columns 5 to `last`; then total, reserved, host, pinned in use, page-locked.
stats data every ::1 using 1 nooutput
columns = STATS_columns
last = columns - 5
array colour[last]
array name[last]
array seen[last]
do for [i = 5:last] {
    stats data every ::0::0 using (key = strcol(i), 0) nooutput
    colour[i] = category_colour(key)
    name[i] = category_title(key)
    stats data every ::1 using i nooutput
    seen[i] = STATS_max > 0.002 * peak * GiB
}
stack(i) = sum [k = 5:i] column(k) / GiB

set xrange [0:sections]
unset xtics
unset key
set lmargin at screen 0.07
set rmargin at screen 0.785

# Screen coordinates: the device's strip, the peaks under it, the host's strip. A title of several
# lines makes the picture higher; all below it stays: shares of 560 pixels.
more = head_room(head, 950)
height = 560.0 + more
up(share) = share * 560 / height
device_top = up(0.80); device_bottom = up(0.37); host_roof = up(0.28); host_bottom = up(0.07)

peak_colour = 0x000000
# Two or three numbers on the short axis: 1, 2 or 5 times a power of ten.
power(x) = 10 ** floor(log10(x))
host_step(x) = (x / 2 < 2 * power(x / 2) ? 1 : x / 2 < 5 * power(x / 2) ? 2 : 5) * power(x / 2)
array line_name[4] = ['peak of the phase', 'reserved', 'host, pageable', 'host, page-locked']
array line_colour[4] = [peak_colour, ink, alarm, 0x882255]
array line_width[4] = [4, 1.5, 1.5, 1.5]
mark = 0.006 * top # half the height of the mark at a peak

do for [kind in formats] {
    eval use(kind, 1000, height)
    set output base.'.'.kind
    set multiplot

    set label 3 head_text(head, 950) at screen 0.07, 1 - 25.2 / height left font ',14' textcolor rgb ink
    set label 4 'memory of a GPU and of its process over a run, simulated' at screen 0.07, up(0.91) left textcolor rgb soft
    set label 5 'peak, GiB' at screen 0.062, device_bottom - up(0.023) right textcolor rgb ink
    shown = 4
    do for [i = 5:last] { shown = shown + seen[i] }
    row = 0
    do for [i = 5:last] {
        if (seen[i]) {
            y = 0.43 + 0.044 * (row - (shown - 1) / 2.0)
            set object 10 + i rectangle from screen 0.805, up(y - 0.013) to screen 0.826, up(y + 0.013) fs solid noborder fc rgb colour[i] front
            set label 10 + i name[i] at screen 0.836, up(y) left textcolor rgb ink front
            row = row + 1
        }
    }
    do for [i = 1:4] {
        y = 0.43 + 0.044 * (row - (shown - 1) / 2.0)
        set arrow 40 + i from screen 0.805, up(y) to screen 0.826, up(y) nohead lc rgb line_colour[i] lw line_width[i] front
        set label 40 + i line_name[i] at screen 0.836, up(y) left textcolor rgb ink front
        row = row + 1
    }
    if (show_limit) {
        set arrow 1 from 0, limit to sections, limit nohead lc rgb alarm lw 1.5 dt (8, 4) front
        set label 1 sprintf('usable: %.2f GiB', limit) at 0.01 * sections, limit + 0.045 * top left textcolor rgb alarm front
    }
    set tmargin at screen device_top
    set bmargin at screen device_bottom
    set yrange [0:top]
    set ytics auto
    set ylabel 'GPU (GiB)'
    plot peaks every ::1 using (0):(0):($0):($0 + 1):(0):(top):(int($0) % 2 ? 0xF3F3F3 : 0xFFFFFF) \
            with boxxyerror fs solid noborder lc rgb variable notitle, \
        for [i = last:5:-1] data every ::1 using 2:(seen[i] ? stack(i) : NaN) \
            with filledcurves y1=0 fs solid noborder lc rgb colour[i] notitle, \
        data every ::1 using 2:(column(columns - 3) / GiB) with steps lw 1.5 lc rgb ink notitle, \
        peaks every ::1 using (0):(0):($0 + 0.01):($0 + 0.99):($4 / GiB - mark):($4 / GiB + mark) \
            with boxxyerror fs solid noborder lc rgb peak_colour notitle, \
        peaks every ::1 using ($0 + 0.5):(top):1 with labels offset 0, 0.8 textcolor rgb ink notitle, \
        peaks every ::1 using ($0 + 0.5):(0):(sprintf('%.2f', $4 / GiB)) \
            with labels offset 0, -0.9 textcolor rgb ink notitle

    do for [i = 10:60] { unset label i; unset object i; unset arrow i }
    do for [i in '1 3 4 5'] { unset label int(i) }
    unset arrow 1
    set tmargin at screen host_roof
    set bmargin at screen host_bottom
    set yrange [0:host_top]
    set ytics host_step(host_top)
    set ylabel 'host (GiB)'
    plot peaks every ::1 using (0):(0):($0):($0 + 1):(0):(host_top):(int($0) % 2 ? 0xF3F3F3 : 0xFFFFFF) \
            with boxxyerror fs solid noborder lc rgb variable notitle, \
        data every ::1 using 2:(column(columns - 2) / GiB) with steps lw 1.5 lc rgb alarm notitle, \
        data every ::1 using 2:(column(columns) / GiB) with steps lw 1.5 lc rgb 0x882255 notitle
    unset multiplot
}
unset output
