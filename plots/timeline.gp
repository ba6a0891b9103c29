# timeline.gp: what the streams do at both ends of the step and during three blocks, in forward and in
# backward. Draws timeline.csv of a strategy:   gnuplot -e "dir='OUT/STRATEGY'; out='timeline'" plots/timeline.gp
reset
if (!exists("dir")) dir = '.'
if (!exists("out")) out = 'timeline'
load ARG0[1:strlen(ARG0) - strlen('timeline.gp')].'style.gp'

data = dir.'/timeline.csv'

# Columns: panel, lane, kind, start, end, label. Rows of `kind` in `panel`:
row(panel, kind) = strcol(1) eq panel && strcol(3) eq kind

# How many lanes and panels there are, and which kinds of boxes.
kinds = 'matmul attention pointwise copy all_gather reduce_scatter all_reduce collective'
titles = '"matrix product" attention "element-wise" copy all-gather reduce-scatter all-reduce "other collective"'
array colour[8] = [0x0072B2, 0x56B4E9, 0xC8C8C8, 0x8C8C8C, 0xE69F00, 0xCC79A7, 0x44BB99, 0xF0E442]
array seen[8]
n_lanes = 1
n_blocks = 0
head = ''
measured = 0
panels = ''
windows = ''
kinds_seen = ' '
titles_of = ''
stats data every ::1 using (kind = strcol(3), lane = $2, \
    n_lanes = lane + 1 > n_lanes ? lane + 1 : n_lanes, \
    n_blocks = n_blocks + (kind eq 'block'), \
    head = kind eq 'title' ? strcol(6) : head, \
    measured = kind eq 'title' ? int(lane) : measured, \
    titles_of = kind eq 'window' ? titles_of.' "'.strcol(6).'"' : titles_of, \
    windows = kind eq 'window' ? windows.sprintf(' %.17g %.17g', $4 * 1e3, $5 * 1e3) : windows, \
    panels = kind eq 'window' ? panels.' '.strcol(1) : panels, \
    kinds_seen = strstrt(kinds_seen, ' '.kind.' ') ? kinds_seen : kinds_seen.kind.' ', 1) nooutput
do for [k = 1:8] { seen[k] = strstrt(kinds_seen, ' '.word(kinds, k).' ') > 0 }

about = 'the steady step, '.(measured ? 'measured' : 'simulated').': '. \
    (strstrt(panels, 'step') ? 'all of it' : 'how it begins and ends'). \
    (n_blocks > 0 ? ', and blocks in the middle of the model' : ', and its passes')
if (!(seen[5] || seen[6] || seen[7] || seen[8])) { about = about.'; no communication runs meanwhile' }

# Sizes in pixels of the SVG.
width = 1100
lane = 34
more = head_room(head, width)
above = 124 + more
below = 58
panel = lane * (n_lanes + 0.9)
gap = 62
n_panels = words(panels) > 0 ? words(panels) : 1
height = 1.0 * (above + n_panels * panel + (n_panels - 1) * gap + below)
set lmargin at screen 0.115
set rmargin at screen 0.983
set yrange [-n_lanes + 0.5:1.4]
unset ytics
set border 1

set style textbox opaque noborder fillcolor rgb 'white' margins 0.6, 0.4
middle(a, b) = (a + b) / 2 * 1e3

do for [kind in formats] {
    eval use(kind, width, height)
    set output base.'.'.kind
    set multiplot
    do for [p = 1:n_panels] {
        name = word(panels, p)
        set xrange [real(word(windows, 2 * p - 1)):real(word(windows, 2 * p))]
        set tmargin at screen 1 - (above + (p - 1) * (panel + gap)) / height
        set bmargin at screen 1 - (above + (p - 1) * (panel + gap) + panel) / height
        unset label
        unset key
        if (p == 1) {
            set label 1 head_text(head, width) at screen 0.012, 1 - 22.0 / height left font ',14' textcolor rgb ink
            set label 2 about at screen 0.012, 1 - (46.0 + more) / height left textcolor rgb soft
            set key at screen 0.012, 1 - (66.0 + more) / height left top horizontal Left reverse maxrows 1 samplen 1.4 width 0
        }
        set label 3 word(titles_of, p) at screen 0.012, graph 1 offset 0, -0.8 left font ',13' textcolor rgb ink
        if (p == n_panels) { set xlabel 'time in the step (ms)' } else { unset xlabel }
        plot data every ::1 using (row(name, 'lane') ? middle($4, $5) : NaN):(-$2):($4 * 1e3):($5 * 1e3):(-$2 - 0.46):(-$2 + 0.46) \
                with boxxyerror fs solid noborder lc rgb 0xF4F4F4 notitle, \
            for [k = 1:4] data every ::1 using (row(name, word(kinds, k)) ? middle($4, $5) : NaN):(-$2):($4 * 1e3):($5 * 1e3):(-$2 - 0.36):(-$2 + 0.36) \
                with boxxyerror lc rgb colour[k] lw 0.6 fs solid border notitle, \
            for [k = 5:8] data every ::1 using (row(name, word(kinds, k)) ? middle($4, $5) : NaN):(-$2):($4 * 1e3):($5 * 1e3):(-$2 - 0.36):(-$2 + 0.36) \
                with boxxyerror lc rgb colour[k] lw 0.8 fs solid border lc rgb 'white' notitle, \
            data every ::1 using (row(name, 'exposed') ? middle($4, $5) : NaN):(-$2):($4 * 1e3):($5 * 1e3):(-$2 - 0.36):(-$2 + 0.36) \
                with boxxyerror lc rgb 0x444444 lw 0.7 fs transparent pattern 4 border notitle, \
            data every ::1 using (row(name, 'block') ? $4 * 1e3 : NaN):(0.62):(($5 - $4) * 1e3):(0) \
                with vectors heads size screen 0.004, 90 lc rgb soft lw 0.8 notitle, \
            data every ::1 using (row(name, 'block') ? middle($4, $5) : NaN):(0.98):6 \
                with labels textcolor rgb ink notitle, \
            data every ::1 using (row(name, 'name') ? middle($4, $5) : NaN):(-$2):6 \
                with labels font ',10' textcolor rgb ink notitle, \
            data every ::1 using (row(name, 'name_exposed') ? middle($4, $5) : NaN):(-$2):6 \
                with labels boxed font ',10' textcolor rgb ink notitle, \
            data every ::1 using (row(name, 'name_right') ? $4 * 1e3 : NaN):(-$2):6 \
                with labels left font ',10' textcolor rgb ink notitle, \
            data every ::1 using (row(name, 'name_left') ? $5 * 1e3 : NaN):(-$2):6 \
                with labels right font ',10' textcolor rgb ink notitle, \
            data every ::1 using (row(name, 'lane') ? $4 * 1e3 : NaN):(-$2):6 \
                with labels right offset -0.8, 0 textcolor rgb ink notitle, \
            for [k = 1:8] NaN with boxes fs solid noborder lc rgb colour[k] title (seen[k] ? word(titles, k) : ''), \
            NaN with boxes lc rgb 0x444444 lw 0.7 fs transparent pattern 4 border title 'exposed (compute idle)'
    }
    unset multiplot
}
unset output
