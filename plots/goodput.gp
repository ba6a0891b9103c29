# goodput.gp: where the time of a long run goes, by the interval between checkpoints. Draws
# goodput.csv and goodput-frame.csv of `tessera goodput --out`:
#     gnuplot -e "dir='OUT'; out='goodput'" plots/goodput.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'goodput'
load ARG0[1:strlen(ARG0) - strlen('goodput.gp')].'style.gp'

data = dir.'/goodput.csv'
frame = dir.'/goodput-frame.csv'

# goodput.csv: 1 interval, 2 useful, 3 and 4 its p5 and p95, 5 lost, 6 checkpoint, 7 restart.
# Intervals in minutes, hours or days, as the best one is long.
stats frame every ::1::1 using (best_s = $1, best_share = $2 * 100, asked_s = $3, \
    asked_share = $4 * 100, mtbf = $5 / 3600, stall = $6, restart = $7 / 60, days = $8, \
    head = strcol(9), from_s = $10, to_s = $11, loss = $12 * 100, 1) nooutput
unit = best_s < 4 * 3600 ? 60.0 : best_s < 72 * 3600 ? 3600.0 : 86400.0
word_of = unit == 60 ? 'min' : unit == 3600 ? 'h' : 'days'
axis_of = unit == 60 ? 'minutes' : unit == 3600 ? 'hours' : 'days'
best = best_s / unit; asked = asked_s / unit; from = from_s / unit; to = to_s / unit
most = 0
x0 = 1e300; x1 = 0
stats data every ::1 using (gone = ($5 + $6 + $7) * 100, most = gone > most ? gone : most, \
    x0 = $1 / unit < x0 ? $1 / unit : x0, x1 = $1 / unit > x1 ? $1 / unit : x1, 1) nooutput

width = 960
about = sprintf('%.0f days; a failure every %s; a checkpoint stops the job for %.3g s, a failure for %.3g min; shaded: at most %.3g %% less goodput', \
    days, long_time(mtbf), stall, restart, loss)
more = head_room(head, width)
under = more + about_room(about, width)
height = 560.0 + under
set lmargin at screen 90.0 / width
set rmargin at screen (90.0 + 830) / width
set tmargin at screen 1 - (118.0 + under) / height
set bmargin at screen 70.0 / height
set logscale x
set style textbox opaque noborder fillcolor rgb 'white' margins 0.4, 0.4
set xlabel sprintf('work between two checkpoints (%s, log scale)', axis_of)
set ylabel 'time that is not useful work (%)'
set grid lc rgb 0xEEEEEE lw 0.8 lt 1
set key at screen 0.012, 1 - (68.0 + under) / height left top horizontal Left reverse samplen 1.4 width 0 maxrows 1
set label 1 head_text(head, width) at screen 0.012, 1 - 24.0 / height left font ',14' textcolor rgb ink
set label 2 about_text(about, width) at screen 0.012, 1 - (48.0 + more) / height left textcolor rgb soft
set arrow 1 from best, graph 0 to best, graph 1 nohead lc rgb ink lw 1.2 dt (8, 4) front
set label 3 sprintf('best: every %.3g to %.3g %s, goodput %.2f %%', from, to, word_of, best_share) at best, graph 0.95 \
    left offset 0.7, 0 textcolor rgb ink front boxed
if (asked > 0) {
    set arrow 2 from asked, graph 0 to asked, graph 1 nohead lc rgb alarm lw 1.2 dt (3, 3) front
    set label 4 sprintf('asked: every %.3g %s, %.2f %%', asked, word_of, asked_share) at asked, graph 0.88 \
        left offset 0.7, 0 textcolor rgb alarm front boxed
    x0 = asked < x0 ? asked : x0
    x1 = asked > x1 ? asked : x1
}
x0 = from < x0 ? from : x0
x1 = to > x1 ? to : x1
set xrange [x0:x1]
set yrange [0:1.18 * most] # room for the names of the lines
set object 1 rectangle from from, graph 0 to to, graph 1 fs solid noborder fc rgb 0xE9F3E9 behind
# A name stands on the side of its line where there is room: half the picture.
right_of(x) = log(x / x0) / log(x1 / x0) < 0.5
if (!right_of(best)) { set label 3 right offset -0.7, 0 }
if (asked > 0 && !right_of(asked)) { set label 4 right offset -0.7, 0 }

do for [kind in formats] {
    eval use(kind, width, height)
    set output base.'.'.kind
    plot data every ::1 using ($1 / unit):(($5 + $6 + $7) * 100) with filledcurves y=0 lc rgb 0x56B4E9 title 'checkpoints', \
        data every ::1 using ($1 / unit):(($5 + $7) * 100) with filledcurves y=0 lc rgb 0xD55E00 title 'work lost', \
        data every ::1 using ($1 / unit):($7 * 100) with filledcurves y=0 lc rgb 0x999999 title 'restarts', \
        data every ::1 using ($1 / unit):((1 - $3) * 100) with lines lc rgb soft lw 1 dt (4, 3) title 'p5 and p95 of the runs', \
        data every ::1 using ($1 / unit):((1 - $4) * 100) with lines lc rgb soft lw 1 dt (4, 3) notitle
}
unset output
