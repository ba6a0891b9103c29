# compare-time.gp: where the time of a step goes, a bar per strategy. Draws compare.csv and
# compare-frame.csv of a study:   gnuplot -e "dir='OUT'; out='compare-time'" plots/compare-time.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'compare-time'
load ARG0[1:strlen(ARG0) - strlen('compare-time.gp')].'style.gp'

data = dir.'/compare.csv'
frame = dir.'/compare-frame.csv'

stats frame every ::1::1 using (head = strcol(6), per_token = int($9), 1) nooutput

# Columns: name, step, compute, exposed communication, other, ..., 10 MFU, ..., 15 seconds per token
# and GPU, which bars are of where steps have different numbers of tokens. In ms, else in us.
scale(step, token) = per_token && step > 0 ? 1e6 * token / step : 1e3
stats data every ::1 using (time = $2 * scale($2, $15), longest = $0 == 0 || time > longest ? time : longest, \
    letters = $0 == 0 || strlen(strcol(1)) > letters ? strlen(strcol(1)) : letters, 1) nooutput
rows = STATS_records

width = 1000
left = 7.4 * letters + 24
bar = 30
above = 104
height = 1.0 * (above + bar * rows + 62)
set lmargin at screen left / width
set rmargin at screen 0.975
set tmargin at screen 1 - above / height
set bmargin at screen 62.0 / height
set xrange [0:longest * 1.26]
set yrange [rows - 0.4:-0.6]
set xlabel per_token ? 'time per token and GPU (µs)' : 'step time (ms)'
set ytics scale 0
set border 1
set grid x lc rgb 0xEEEEEE lw 0.8 lt 1
set key at screen 0.012, 1 - 62.0 / height left top horizontal Left reverse samplen 1.4 width 0
set label 1 head at screen 0.012, 1 - 24.0 / height left font ',14' textcolor rgb ink
set label 2 'where the time of the steady step goes, simulated unless named -measured'.(per_token ? '; per token: steps have different numbers of them' : '') at screen 0.012, 1 - 48.0 / height left textcolor rgb soft

number(time) = per_token ? sprintf('%.4g µs', time) : sprintf('%.1f ms', time)
text(time, mfu) = number(time).(strlen(mfu) ? sprintf(', MFU %.1f %%', real(mfu) * 100) : '')

do for [kind in formats] {
    eval use(kind, width, height)
    set output base.'.'.kind
    plot data every ::1 using (0):0:(0):($3 * scale($2, $15)):($0 - 0.36):($0 + 0.36):ytic(1) \
            with boxxyerror fs solid noborder lc rgb 0x0072B2 notitle, \
        data every ::1 using (0):0:($3 * scale($2, $15)):(($3 + $4) * scale($2, $15)):($0 - 0.36):($0 + 0.36) \
            with boxxyerror fs solid noborder lc rgb 0xE69F00 notitle, \
        data every ::1 using (0):0:($3 * scale($2, $15)):(($3 + $4) * scale($2, $15)):($0 - 0.36):($0 + 0.36) \
            with boxxyerror lc rgb ink lw 0.6 fs transparent pattern 4 noborder notitle, \
        data every ::1 using (0):0:(($3 + $4) * scale($2, $15)):(($3 + $4 + $5) * scale($2, $15)):($0 - 0.36):($0 + 0.36) \
            with boxxyerror fs solid noborder lc rgb 0xBBBBBB notitle, \
        data every ::1 using ($2 * scale($2, $15)):0:(text($2 * scale($2, $15), strcol(10))) with labels left offset 0.6, 0 textcolor rgb ink notitle, \
        NaN with boxes fs solid noborder lc rgb 0x0072B2 title 'compute', \
        NaN with boxes lc rgb 0xE69F00 fs solid noborder title 'exposed communication', \
        NaN with boxes fs solid noborder lc rgb 0xBBBBBB title 'neither: waiting for the host'
}
unset output
