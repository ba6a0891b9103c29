# compare-bars.gp: memory at the peak by owner, a bar per strategy. Draws compare-categories.csv
# and compare-frame.csv of a study:
#     gnuplot -e "dir='OUT'; out='compare-bars'" plots/compare-bars.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'compare-bars'
load ARG0[1:strlen(ARG0) - strlen('compare-bars.gp')].'style.gp'

data = dir.'/compare-categories.csv'
frame = dir.'/compare-frame.csv'

stats frame every ::1::1 using (limit = strlen(strcol(5)) ? real(strcol(5)) : 0, head = strcol(6), measured = int($10), 1) nooutput

# Columns: name, usable, reserved, allocated, then one per owner.
stats data every ::1 using (widest = $0 == 0 || $3 > widest ? $3 : widest, \
    line = widest_line(strcol(1), NAME), letters = $0 == 0 || line > letters ? line : letters, \
    line = lines(strcol(1), NAME), high = $0 == 0 || line > high ? line : high, \
    beside = ($0 == 0 ? 0 : beside) + (strstrt(strcol(1), '-measured') > 0), 1) nooutput
rows = STATS_records
first = 5
last = STATS_columns
array colour[last]
array name[last]
array seen[last] # an owner of a few kilobytes is no part of the legend
n_seen = 0
do for [i = first:last] {
    stats data every ::0::0 using (key = strcol(i), 0) nooutput
    colour[i] = category_colour(key)
    name[i] = category_title(key)
    stats data every ::1 using i nooutput
    seen[i] = STATS_max > 0.002 * widest
    n_seen = n_seen + seen[i]
}
unit = unit_bytes(widest)
name_of_unit = unit_name(widest)
widest = widest / unit
limit = limit * GiB / unit
show_limit = limit > 0 && limit < 2.5 * widest
right = 1.06 * (show_limit && limit > widest ? limit : widest)

# Pixels of the SVG: the names of strategies decide the left margin.
left = 7.4 * letters + 24
width = 1000 + (left > 260 ? left - 260 : 0)
bar = high > 1 ? 16 * high + 8 : 30
more = head_room(head, width)
above = 92 + more
legend = 23 * n_seen
inside = bar * rows > legend ? bar * rows : legend
height = 1.0 * (above + inside + 62)
set lmargin at screen left / width
set rmargin at screen (width - 325.0) / width
set tmargin at screen 1 - above / height
set bmargin at screen 62.0 / height
set xrange [0:right]
set yrange [rows - 0.4:-0.6]
set xlabel sprintf('memory at the peak (%s)', name_of_unit)
unset ytics
set border 1
set grid x lc rgb 0xEEEEEE lw 0.8 lt 1
unset key
set label 1 head_text(head, width) at screen 0.012, 1 - 24.0 / height left font ',14' textcolor rgb ink
set label 2 sprintf('memory of the fullest %s at its peak by owner (%s), %s; tick: reserved memory', measured ? 'rank' : 'GPU', name_of_unit, \
    measured ? 'measured' : beside ? 'simulated unless named -measured' : 'simulated') at screen 0.012, 1 - (48.0 + more) / height left textcolor rgb soft
if (show_limit) {
    set arrow 1 from limit, graph 0 to limit, graph 1 nohead lc rgb alarm lw 1.5 dt (8, 4) front
    set label 3 sprintf('usable: %.2f %s', limit, name_of_unit) at limit, graph 1 right offset 0.5, 0.7 textcolor rgb alarm
    if (limit < 0.4 * right) { set label 3 left offset -0.5, 0.7 }
}
if (limit > 0 && !show_limit) {
    set label 3 sprintf('usable on the %s: %.2f GiB, right of the picture', measured ? 'modelled card' : 'card', limit * unit / GiB) at graph 1, graph 1 right offset 0, 0.7 textcolor rgb alarm
}
set label 4 'peak' at graph 1, graph 1 right offset 6.5, 0.7 textcolor rgb ink
set label 5 'reserved' at graph 1, graph 1 right offset 14.5, 0.7 textcolor rgb soft
# The legend by hand: gnuplot's own drops what is higher than the plot.
row = 0
do for [i = first:last] {
    if (seen[i]) {
        y = 1 - (above + 12 + 23 * row) / height
        set object 10 + i rectangle from screen (width - 185.0) / width, y - 6 / height to screen (width - 164.0) / width, y + 6 / height fs solid noborder fc rgb colour[i] front
        set label 10 + i name[i] at screen (width - 155.0) / width, y left textcolor rgb ink front
        row = row + 1
    }
}
begin(i) = i > first ? (sum [k = first:i - 1] column(k)) / unit : 0
finish(i) = (sum [k = first:i] column(k)) / unit

do for [kind in formats] {
    eval use(kind, width, height)
    set output base.'.'.kind
    plot for [i = first:last] data every ::1 using (begin(i)):0:(begin(i)):(finish(i)):($0 - 0.36):($0 + 0.36) \
            with boxxyerror fs solid noborder lc rgb colour[i] notitle, \
        data every ::1 using ($3 / unit):($0 - 0.42):(0):(0.84) with vectors nohead lc rgb ink lw 1.5 notitle, \
        data every ::1 using (0):($0 - raised(strcol(1), NAME, 1.0 * inside / rows)):(fold(strcol(1), NAME)) with labels right offset -0.9, 0 textcolor rgb ink notitle, \
        data every ::1 using (right):0:(sprintf('%.2f', $4 / unit)) with labels right offset 6.5, 0 textcolor rgb ink notitle, \
        data every ::1 using (right):0:(sprintf('%.2f', $3 / unit)) with labels right offset 14.5, 0 textcolor rgb soft notitle
}
unset output
