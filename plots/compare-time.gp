# compare-time.gp: where the time of a step goes, a bar per strategy. Draws compare.csv and
# compare-frame.csv of a study:   gnuplot -e "dir='OUT'; out='compare-time'" plots/compare-time.gp
# With rows='measured' measured.csv and measured-frame.csv: a run beside what was simulated.
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'compare-time'
if (!exists("rows")) rows = 'compare'
load ARG0[1:strlen(ARG0) - strlen('compare-time.gp')].'style.gp'

data = dir.'/'.rows.'.csv'
frame = dir.'/'.rows.'-frame.csv'

stats frame every ::1::1 using (head = strcol(6), per_token = int($9), measured = int($10), 1) nooutput

# Columns: name, step, compute, exposed communication, other, ..., 10 MFU, ..., 15 seconds per token
# and GPU, which bars are of where steps have different numbers of tokens. In ms, else in us.
scale(step, token) = per_token && step > 0 ? 1e6 * token / step : 1e3
stats data every ::1 using (time = $2 * scale($2, $15), longest = $0 == 0 || time > longest ? time : longest, \
    line = widest_line(strcol(1), NAME), letters = $0 == 0 || line > letters ? line : letters, \
    line = lines(strcol(1), NAME), high = $0 == 0 || line > high ? line : high, 1) nooutput
n_rows = STATS_records

left = 7.4 * letters + 24
width = 1000 + (left > 260 ? left - 260 : 0)
bar = high > 1 ? 16 * high + 8 : 30
about = 'where the time of the steady step goes, '.(measured ? 'measured: a run on the ranks of its machine' : 'simulated').(per_token ? '; per token: steps have different numbers of them' : '')
more = head_room(head, width)
above = 104 + more
height = 1.0 * (above + bar * n_rows + 62)
set lmargin at screen left / width
set rmargin at screen 0.975
set tmargin at screen 1 - above / height
set bmargin at screen 62.0 / height
plot_width = 0.975 * width - left
set xrange [0:longest * plot_width / (plot_width - 175)]
set yrange [n_rows - 0.4:-0.6]
set xlabel per_token ? 'time per token and '.(measured ? 'rank' : 'GPU').' (µs)' : 'step time (ms)'
unset ytics
set border 1
set grid x lc rgb 0xEEEEEE lw 0.8 lt 1
set key at screen 0.012, 1 - (62.0 + more) / height left top horizontal Left reverse samplen 1.4 width 0
set label 1 head_text(head, width) at screen 0.012, 1 - 24.0 / height left font ',14' textcolor rgb ink
set label 2 about at screen 0.012, 1 - (48.0 + more) / height left textcolor rgb soft

number(time) = per_token ? sprintf('%.4g µs', time) : sprintf(time < 10 ? '%.3g ms' : '%.1f ms', time)
text(time, mfu) = number(time).(strlen(mfu) ? sprintf(', MFU %.1f %%', real(mfu) * 100) : '')

do for [kind in formats] {
    eval use(kind, width, height)
    set output base.'.'.kind
    plot data every ::1 using (0):0:(0):($3 * scale($2, $15)):($0 - 0.36):($0 + 0.36) \
            with boxxyerror fs solid noborder lc rgb 0x0072B2 notitle, \
        data every ::1 using (0):0:($3 * scale($2, $15)):(($3 + $4) * scale($2, $15)):($0 - 0.36):($0 + 0.36) \
            with boxxyerror fs solid noborder lc rgb 0xE69F00 notitle, \
        data every ::1 using (0):0:($3 * scale($2, $15)):(($3 + $4) * scale($2, $15)):($0 - 0.36):($0 + 0.36) \
            with boxxyerror lc rgb ink lw 0.6 fs transparent pattern 4 noborder notitle, \
        data every ::1 using (0):0:(($3 + $4) * scale($2, $15)):(($3 + $4 + $5) * scale($2, $15)):($0 - 0.36):($0 + 0.36) \
            with boxxyerror fs solid noborder lc rgb 0xBBBBBB notitle, \
        data every ::1 using ($2 * scale($2, $15)):0:(text($2 * scale($2, $15), strcol(10))) with labels left offset 0.6, 0 textcolor rgb ink notitle, \
        data every ::1 using (0):($0 - raised(strcol(1), NAME, bar)):(fold(strcol(1), NAME)) with labels right offset -0.9, 0 textcolor rgb ink notitle, \
        NaN with boxes fs solid noborder lc rgb 0x0072B2 title 'compute', \
        NaN with boxes lc rgb 0xE69F00 fs solid noborder title 'exposed communication', \
        NaN with boxes fs solid noborder lc rgb 0xBBBBBB title 'neither: waiting for the host'
}
unset output
