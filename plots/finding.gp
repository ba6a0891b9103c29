# finding.gp: one finding of experiments/findings, lines over a few named values. Draws finding.csv of a folder, or NAME.csv
# with rows='NAME': a line with the title, the texts of both axes and the number of lines, a line with the columns' names, the points.
#     gnuplot -e "dir='experiments/findings'; rows='hsdp'; out='hsdp'; formats='png'" plots/finding.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'finding'
if (!exists("rows")) rows = 'finding'
load ARG0[1:strlen(ARG0) - strlen('finding.gp')].'style.gp'

data = dir.'/'.rows.'.csv'

stats data every ::0::0 using (head = strcol(1), across = strcol(2), up = strcol(3), n_lines = int($4), 1) nooutput
stats data skip 2 using 0 nooutput
n_points = STATS_records
array colour[7] = [0x0072B2, 0xE69F00, 0x009E73, 0xCC79A7, 0x56B4E9, 0xD55E00, 0x777777]

width = 760
under = 58 + 15 * ((n_lines + 1) / 2)
more = head_room(head, width)
height = 320.0 + under + more
set lmargin at screen 70.0 / width
set rmargin at screen 0.975
set tmargin at screen 1 - (48.0 + more) / height
set bmargin at screen 1.0 * under / height
set xrange [-0.25:n_points - 0.75]
set offsets 0, 0, graph 0.06, graph 0.06
set xlabel across offset 0, 0.3
set ylabel up
set grid y lc rgb 0xEEEEEE lw 0.8 lt 1
set xzeroaxis lc rgb soft lw 1.2 lt 1
set key at screen 0.5, 6.0 / height center bottom horizontal maxcols 2 Left reverse samplen 2 width 1
set label 1 head_text(head, width) at screen 0.012, 1 - 24.0 / height left font ',14' textcolor rgb ink

do for [kind in formats] {
    eval use(kind, width, height)
    set output base.'.'.kind
    plot for [i = 2:n_lines + 1] data skip 1 using 0:i:xtic(1) with linespoints lc rgb colour[i - 1] lw 2 pt 7 ps 0.7 title columnheader(i)
    set output
}
