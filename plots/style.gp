# style.gp: colours, fonts and sizes that all pictures share. Loaded by the other scripts, which set
# `dir` (the folder of the data) and `out` (the picture's name, in that folder unless it has a '/').
#
# Colours: Okabe and Ito's palette, safe for colour-blind readers; families differ in lightness too.

set encoding utf8
set datafile separator ','
set datafile missing ''

base = strstrt(out, '/') ? out : dir.'/'.out
GiB = 1073741824.0

ink = 0x222222; soft = 0x777777; faint = 0xDDDDDD; alarm = 0xC0392B

# Owners of memory, with the names of the program (tsr_category_name()). The page report.html takes colours and names from here.
# What stays in blues, gathered parameters in oranges, gradients in purples and
# yellows, activations green, scratch grey.
category_colour(key) = \
    key eq 'sharded_param_bytes'              ? 0x0072B2 : \
    key eq 'buffer_bytes'                     ? 0x003A5C : \
    key eq 'opt_state_bytes'                  ? 0x56B4E9 : \
    key eq 'sharded_grad_bytes'               ? 0xB9E0F7 : \
    key eq 'inputs_bytes'                     ? 0x332288 : \
    key eq 'post_forward_shard_bytes'         ? 0xFFD894 : \
    key eq 'unsharded_param_bytes'            ? 0xE69F00 : \
    key eq 'all_gather_input_bytes'           ? 0x7A3300 : \
    key eq 'all_gather_bytes'                 ? 0xD55E00 : \
    key eq 'activation_bytes'                 ? 0x009E73 : \
    key eq 'unsharded_accumulated_grad_bytes' ? 0x882255 : \
    key eq 'unsharded_grad_bytes'             ? 0xCC79A7 : \
    key eq 'reduce_scatter_bytes'             ? 0xF0E442 : \
    key eq 'reduce_scatter_output_bytes'      ? 0xB3A100 : \
    key eq 'partial_reduce_output_bytes'      ? 0x6E6400 : \
    key eq 'opt_temp_bytes'                   ? 0xCCCCCC : \
    key eq 'temp_bytes'                       ? 0x999999 : \
    key eq 'init_bytes'                       ? 0x88A4C0 : \
    key eq 'workspace_bytes'                  ? 0x5A5A5A : 0xEEEEEE

category_title(key) = \
    key eq 'sharded_param_bytes'              ? 'Sharded Param' : \
    key eq 'buffer_bytes'                     ? 'Buffer' : \
    key eq 'opt_state_bytes'                  ? 'OptState' : \
    key eq 'sharded_grad_bytes'               ? 'Sharded Grad' : \
    key eq 'inputs_bytes'                     ? 'Inputs' : \
    key eq 'post_forward_shard_bytes'         ? 'Post-Forward Shard' : \
    key eq 'unsharded_param_bytes'            ? 'Unsharded Param' : \
    key eq 'all_gather_input_bytes'           ? 'All Gather Input' : \
    key eq 'all_gather_bytes'                 ? 'All Gather' : \
    key eq 'activation_bytes'                 ? 'Activation' : \
    key eq 'unsharded_accumulated_grad_bytes' ? 'Unsharded Accumulated Grad' : \
    key eq 'unsharded_grad_bytes'             ? 'Unsharded Grad' : \
    key eq 'reduce_scatter_bytes'             ? 'Reduce Scatter' : \
    key eq 'reduce_scatter_output_bytes'      ? 'Reduce Scatter Output' : \
    key eq 'partial_reduce_output_bytes'      ? 'Partial Reduce Output' : \
    key eq 'opt_temp_bytes'                   ? 'OptTemp' : \
    key eq 'temp_bytes'                       ? 'Temp' : \
    key eq 'init_bytes'                       ? 'Init' : \
    key eq 'workspace_bytes'                  ? 'Workspace' : key[1:strlen(key) - 6]

# Long texts: fold() breaks them into lines of at most `n` letters (20 or more), behind a letter of
# `gaps` where there is one near; lines() counts those; cut() keeps the first line and says so.
gaps = ' ,;:/|+_-.'
fold_at(text, n, i) = i <= n - 16 ? n : strstrt(gaps, text[i:i]) ? i : fold_at(text, n, i - 1)
rest(text, n) = text[fold_at(text, n, n) + 1:strlen(text)]
fold(text, n) = strlen(text) <= n ? text : text[1:fold_at(text, n, n)]."\n".fold(rest(text, n), n)
lines(text, n) = strlen(text) <= n ? 1 : 1 + lines(rest(text, n), n)
cut(text, n) = strlen(text) <= n ? text : text[1:n - 1].'…'

# The title of a picture of `width` pixels, and what its further lines take.
head_letters(width) = int((width - 24) / 8.6)
head_text(head, width) = fold(head, head_letters(width))
head_room(head, width) = 20 * (lines(head, head_letters(width)) - 1)
# The same for the line below it.
about_letters(width) = int((width - 24) / 7.0)
about_text(about, width) = fold(about, about_letters(width))
about_room(about, width) = 16 * (lines(about, about_letters(width)) - 1)

# Names of strategies left of bars: the letters of the longest line, and the lines of the highest.
NAME = 54
widest_line(text, n) = strlen(text) <= n ? strlen(text) : fold_at(text, n, n) > widest_line(rest(text, n), n) ? \
    fold_at(text, n, n) : widest_line(rest(text, n), n)
# A text of several lines begins at its place: how far up that is, of a row of `pitch` pixels.
raised(text, n, pitch) = 0.5 * (lines(text, n) - 1) * 14.5 / pitch

# Bytes: GiB, or MiB where the most is small.
unit_bytes(most) = most < 0.1 * GiB ? 1048576.0 : GiB
unit_name(most) = most < 0.1 * GiB ? 'MiB' : 'GiB'

# Hours, in days from 72 of them.
long_time(hours) = hours < 72 ? sprintf('%.3g h', hours) : \
    sprintf(hours < 24000 ? '%.3g days' : '%.0f days', hours / 24)

# Terminals: width and height are those of the SVG; the PNG has twice as many pixels.
if (!exists("formats")) formats = 'svg png' # what is drawn
use_svg(width, height) = sprintf("set terminal svg noenhanced size %d,%d font 'DejaVu Sans,12' background rgb 'white'", width, height)
use_png(width, height) = sprintf("set terminal pngcairo noenhanced size %d,%d font 'DejaVu Sans,12' fontscale 1.5 linewidth 2 pointscale 2 background rgb 'white'", 2 * width, 2 * height)
use(kind, width, height) = kind eq 'svg' ? use_svg(width, height) : use_png(width, height)

set border 3 lc rgb soft lw 0.8
set tics nomirror out scale 0.5 textcolor rgb ink
set xlabel textcolor rgb ink
set ylabel textcolor rgb ink
set key textcolor rgb ink
set title textcolor rgb ink
