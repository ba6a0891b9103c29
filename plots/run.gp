# run.gp: memory over a whole run, section by section, stacked by owner; reserved memory and the
# host's as lines. Every section has the same width. Draws run-plot.csv and run-peaks.csv of a
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
do for [c in '5 6 8'] { # reserved, host, page-locked
    stats peaks every ::1 using int(c) nooutput
    top = STATS_max / GiB > top ? STATS_max / GiB : top
}
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
set yrange [0:top]
set ylabel 'memory (GiB)'
unset xtics
unset key
set lmargin at screen 0.07
set rmargin at screen 0.785
set bmargin at screen 0.115
set tmargin at screen 0.80
set label 3 head at screen 0.07, 0.955 left font ',14' textcolor rgb ink
set label 4 'memory of a GPU and of its process over a run, simulated; peak of each phase' at screen 0.07, 0.905 left textcolor rgb soft

shown = 3
do for [i = 5:last] { shown = shown + seen[i] }
row = 0
do for [i = 5:last] {
    if (seen[i]) {
        y = 0.4575 + 0.044 * (row - (shown - 1) / 2.0)
        set object 10 + i rectangle from screen 0.805, y - 0.013 to screen 0.826, y + 0.013 fs solid noborder fc rgb colour[i] front
        set label 10 + i name[i] at screen 0.836, y left textcolor rgb ink front
        row = row + 1
    }
}
array line_name[3] = ['reserved', 'host, pageable', 'host, page-locked']
array line_colour[3] = [ink, alarm, 0x882255]
do for [i = 1:3] {
    y = 0.4575 + 0.044 * (row - (shown - 1) / 2.0)
    set arrow 40 + i from screen 0.805, y to screen 0.826, y nohead lc rgb line_colour[i] lw 2 front
    set label 40 + i line_name[i] at screen 0.836, y left textcolor rgb ink front
    row = row + 1
}
if (show_limit) {
    set arrow 1 from 0, limit to sections, limit nohead lc rgb alarm lw 1.5 dt (8, 4) front
    set label 1 sprintf('usable: %.2f GiB', limit) at 0.01 * sections, limit + 0.035 * top left textcolor rgb alarm front
}

do for [kind in 'svg png'] {
    eval use(kind, 1000, 500)
    set output base.'.'.kind
    plot peaks every ::1 using (0):(0):($0):($0 + 1):(0):(top):(int($0) % 2 ? 0xF3F3F3 : 0xFFFFFF) \
            with boxxyerror fs solid noborder lc rgb variable notitle, \
        for [i = last:5:-1] data every ::1 using 2:(seen[i] ? stack(i) : NaN) \
            with filledcurves y1=0 fs solid noborder lc rgb colour[i] notitle, \
        data every ::1 using 2:(column(columns - 3) / GiB) with steps lw 1.5 lc rgb ink notitle, \
        data every ::1 using 2:(column(columns - 2) / GiB) with steps lw 1.5 lc rgb alarm notitle, \
        data every ::1 using 2:(column(columns) / GiB) with steps lw 1.5 lc rgb 0x882255 notitle, \
        peaks every ::1 using ($0 + 0.5):(top):1 with labels offset 0, 0.8 textcolor rgb ink notitle, \
        peaks every ::1 using ($0 + 0.5):(0):(sprintf('%.2f', $4 / GiB)) \
            with labels offset 0, -0.9 textcolor rgb ink notitle
}
unset output
