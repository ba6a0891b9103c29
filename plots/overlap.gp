# overlap.gp: communication of a step: what hides behind computation, what does not and why; by kind
# of collective, and over the step. Draws overlap.csv and overlap-frame.csv of `tessera overlap`:
#     gnuplot -e "dir='OUT'; out='overlap'" plots/overlap.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'overlap'
load ARG0[1:strlen(ARG0) - strlen('overlap.gp')].'style.gp'

data = dir.'/overlap.csv'
frame = dir.'/overlap-frame.csv'

# overlap.csv: 1 kind, 6 start, 7 end, 8 hidden, 9 exposed, 10 beside, 11 to 16 the reasons.
kinds = 'all_gather_forward all_gather_backward reduce_scatter all_reduce other'
titles = '"all-gather, forward" "all-gather, backward" reduce-scatter all-reduce other'
reasons = '"host late" "same communicator" "buffer wait" "stream order" "other ranks" "bandwidth"'
array colour[6] = [0x0072B2, 0xCC79A7, 0xE69F00, 0x56B4E9, 0x8C6BB1, 0xC0392B]
hidden_colour = 0xCFE8DF

stats frame every ::1::1 using (measured = int($1), step = $2 * 1e3, compute = $3 * 1e3, \
    exposed = $5 * 1e3, host = $7 * 1e3, other = ($6 - $7) * 1e3, head = strcol(8), 1) nooutput

# Sums by kind: n, hidden, beside, reasons; kinds that occur get a lane.
array n[5]; array hid[5]; array lane_of[5]; array sums[30]; array of_reason[6]
do for [k = 1:5] {
    n[k] = 0; hid[k] = 0
    do for [r = 1:6] { sums[6 * (k - 1) + r] = 0; of_reason[r] = 0 }
}
do for [k = 1:5] {
    stats data every ::1 using (mine = strcol(1) eq word(kinds, k), n[k] = n[k] + mine, \
        hid[k] = hid[k] + mine * $8 * 1e3, 1) nooutput
    do for [r = 1:6] {
        stats data every ::1 using (sums[6 * (k - 1) + r] = sums[6 * (k - 1) + r] \
            + (strcol(1) eq word(kinds, k)) * column(10 + r) * 1e3, 1) nooutput
        of_reason[r] = of_reason[r] + sums[6 * (k - 1) + r]
    }
}
lanes = 0
widest = 0
do for [k = 1:5] {
    lane_of[k] = -1
    if (n[k] > 0) {
        lane_of[k] = lanes
        lanes = lanes + 1
        total = hid[k]
        do for [r = 1:6] { total = total + sums[6 * (k - 1) + r] }
        widest = total > widest ? total : widest
    }
}
if (widest == 0) { widest = 1 }
lane(kind) = kind eq word(kinds, 1) ? lane_of[1] : kind eq word(kinds, 2) ? lane_of[2] : \
    kind eq word(kinds, 3) ? lane_of[3] : kind eq word(kinds, 4) ? lane_of[4] : lane_of[5]

# Sizes in pixels of the SVG.
width = 1100
row = 34
about = sprintf('%s step of %.1f ms: %.1f ms of computation, %.1f ms (%.1f %%) of communication not hidden, %.1f ms of waiting for the host, %.1f ms of other waits', \
    measured ? 'measured' : 'simulated', step, compute, exposed, step > 0 ? 100 * exposed / step : 0, host, other)
more = head_room(head, width)
under = more + about_room(about, width)
n_named = 1 # entries of the legend, three or more in a row
do for [r = 1:6] { n_named = n_named + (of_reason[r] >= 0.005) }
under = under + (n_named > 6 ? 16 : 0)
above = 128 + under
gap = 74
below = 58
panel = row * (lanes > 0 ? lanes : 1) + 8
height = 1.0 * (above + 2 * panel + gap + below)
set lmargin at screen 0.165
set rmargin at screen 0.983
set yrange [-lanes + 0.4:0.6]
set border 1
unset ytics

# Everything that is filled is drawn as objects: a bar per kind, and a box per collective.
do for [picture in formats] {
    eval use(picture, width, height)
    set output base.'.'.picture
    set multiplot

    # ---- by kind -----------------------------------------------------------------------------
    unset label; unset object
    set tmargin at screen 1 - above / height
    set bmargin at screen 1 - (above + panel) / height
    set xrange [0:widest * 1.27]
    set label 1 head_text(head, width) at screen 0.012, 1 - 22.0 / height left font ',14' textcolor rgb ink
    set label 2 about_text(about, width) at screen 0.012, 1 - (46.0 + more) / height left textcolor rgb soft
    set label 3 'by kind: time in which it runs (ms)' at screen 0.012, 1 - (above - 14.0) / height left font ',13' textcolor rgb ink
    o = 1
    do for [k = 1:5] {
        if (n[k] > 0) {
            y = -lane_of[k]
            at = 0
            set label 10 + k sprintf('%s (%d)', word(titles, k), n[k]) at screen 0.158, first y right textcolor rgb ink
            set object o rectangle from 0, y - 0.36 to hid[k], y + 0.36 fs solid noborder fc rgb hidden_colour
            o = o + 1
            at = hid[k]
            left_over = 0
            do for [r = 1:6] {
                part = sums[6 * (k - 1) + r]
                left_over = left_over + part
                if (part > 0) {
                    set object o rectangle from at, y - 0.36 to at + part, y + 0.36 fs solid noborder fc rgb colour[r]
                    o = o + 1
                    at = at + part
                }
            }
            set label 20 + k sprintf(left_over >= 0.05 ? '%.1f of %.1f not hidden' : 'hidden', left_over, at) at at, y left offset 0.6, 0 textcolor rgb (left_over >= 0.05 ? ink : soft)
        }
    }
    set key at screen 0.012, 1 - (66.0 + more + about_room(about, width)) / height left top horizontal Left reverse maxrows 1 samplen 1.4 width 0
    unset xlabel
    plot NaN with boxes fs solid noborder lc rgb hidden_colour title 'hidden behind computation', \
        for [r = 1:6] (of_reason[r] > 0 ? 1 : NaN) + NaN with boxes fs solid noborder lc rgb colour[r] \
            title of_reason[r] >= 0.005 ? sprintf('%s %.1f ms', word(reasons, r), of_reason[r]) : ''

    # ---- over the step -----------------------------------------------------------------------
    unset label; unset object; unset key
    set tmargin at screen 1 - (above + panel + gap) / height
    set bmargin at screen 1 - (above + 2 * panel + gap) / height
    set xrange [0:step]
    set xlabel 'time in the step (ms)'
    set label 3 'over the step: each collective, with the share that is not hidden' at screen 0.012, 1 - (above + panel + gap - 14.0) / height left font ',13' textcolor rgb ink
    do for [k = 1:5] {
        if (n[k] > 0) {
            set label 10 + k word(titles, k) at screen 0.158, first -lane_of[k] right textcolor rgb ink
            set object k rectangle from 0, -lane_of[k] - 0.42 to step, -lane_of[k] + 0.42 fs solid noborder fc rgb 0xF6F6F6 behind
        }
    }
    # The reasons fill the right end of a box one after the other.
    low(x) = x < 0 ? 0 : x
    plot data every ::1 using (low($6) * 1e3):(-lane(strcol(1))):(low($6) * 1e3):($7 * 1e3):(-lane(strcol(1)) - 0.36):(-lane(strcol(1)) + 0.36) \
            with boxxyerror fs solid noborder lc rgb hidden_colour notitle, \
        for [r = 1:6] data every ::1 using (column(10 + r) > 0 ? $7 * 1e3 : NaN):(-lane(strcol(1))): \
            (($7 - sum [i = r:6] column(10 + i)) * 1e3):(($7 - (r < 6 ? sum [i = r + 1:6] column(10 + i) : 0)) * 1e3):(-lane(strcol(1)) - 0.36):(-lane(strcol(1)) + 0.36) \
            with boxxyerror fs solid noborder lc rgb colour[r] notitle
    unset multiplot
    unset output
}
