# validate.gp: predicted against measured, both logarithmic, with a band of 10 %. Draws validate.csv
# and validate-frame.csv of `tessera validate --out`:
#     gnuplot -e "dir='OUT'; out='validate'" plots/validate.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'validate'
load ARG0[1:strlen(ARG0) - strlen('validate.gp')].'style.gp'

data = dir.'/validate.csv'
frame = dir.'/validate-frame.csv'

# Columns of validate.csv: 2 status, 3 quantity, 5 predicted, 6 measured, 8 GPUs, 9 card, 10 twice
# in the table. One quantity is drawn, that of the frame.
quantity = ''; unit = ''; table = ''
stats frame every ::1 using (quantity = strcol(1), unit = strcol(2), rows = int($3), \
    median_error = $4, p90 = $5, worst = $6, table = strcol(7), 1) nooutput
is_drawn(q, s, d) = q eq quantity && s eq 'predicted' && d eq '0'

cards = ''
low = 1e300; high = 0
stats data every ::1 using (is_drawn(strcol(3), strcol(2), strcol(10)) && strlen(strcol(6)) ? \
    (cards = strstrt(cards, ' '.strcol(9).' ') ? cards : cards.' '.strcol(9).' ', \
     low = $5 < low ? $5 : low, low = $6 < low ? $6 : low, \
     high = $5 > high ? $5 : high, high = $6 > high ? $6 : high, 1) : 0) nooutput
x0 = low / 1.3; x1 = high * 1.3

width = 760
head = sprintf('%s: predicted against measured', table)
about = sprintf('%d figures; error: median %.1f %%, 90 %% within %.1f %%, largest %.1f %%; band: 10 %%; open: more than 8 GPUs', \
    rows, 100 * median_error, 100 * p90, 100 * worst)
more = head_room(head, width)
height = 800.0 + more + about_room(about, width)
set lmargin at screen 90.0 / width
set rmargin at screen (90.0 + 640) / width
set bmargin at screen 62.0 / height
set tmargin at screen (62.0 + 640) / height
set logscale xy
set xrange [x0:x1]
set yrange [x0:x1]
set xtics () nomirror
set ytics () nomirror
wide = x1 / x0 > 60
do for [e = -3:7] { do for [m in (wide ? '1 2 5' : '1 1.5 2 3 4 5 7')] {
    v = real(m) * 10.0 ** e
    if (v > x0 && v < x1) {
        set xtics add (sprintf('%g', v) v)
        set ytics add (sprintf('%g', v) v)
    }
} }
named = unit eq 'tokens/s' ? 'tokens per second and GPU' : quantity.' ('.unit.')'
if (quantity eq 'tokens_per_s') { named = 'tokens per second' }
set xlabel 'measured: '.named.' (log scale)'
set ylabel 'predicted: '.named.' (log scale)'
set grid lc rgb 0xEEEEEE lw 0.8 lt 1
set key at graph 0.02, 0.98 left top Left reverse samplen 1 spacing 1.2
set label 1 head_text(head, width) at screen 0.012, 1 - 24.0 / height left font ',14' textcolor rgb ink
set label 2 about_text(about, width) at screen 0.012, 1 - (48.0 + more) / height left textcolor rgb soft

colours = '0x0072B2 0xD55E00 0x009E73 0xCC79A7 0xE69F00 0x56B4E9 0x000000 0x999999'
set samples 200
do for [kind in formats] {
    eval use(kind, width, height)
    set output base.'.'.kind
    plot '+' using 1:($1 / 1.1):($1 * 1.1) with filledcurves fc rgb 0xEFEFEF notitle, \
        x with lines lc rgb soft lw 1 notitle, \
        for [i = 1:words(cards)] data every ::1 using (strcol(9) eq word(cards, i) && int($8) <= 8 && \
            is_drawn(strcol(3), strcol(2), strcol(10)) ? $6 : NaN):5 \
            with points pt 7 ps 0.6 lc rgb int(word(colours, (i - 1) % 8 + 1)) title word(cards, i), \
        for [i = 1:words(cards)] data every ::1 using (strcol(9) eq word(cards, i) && int($8) > 8 && \
            is_drawn(strcol(3), strcol(2), strcol(10)) ? $6 : NaN):5 \
            with points pt 6 ps 0.9 lw 1.4 lc rgb int(word(colours, (i - 1) % 8 + 1)) notitle
}
unset output
