#!/usr/bin/env python3
"""svg_texts.py FILE...: no text of a picture that gnuplot drew leaves it or stands on another one.

Widths are guessed from the number of letters, a little too small: what is reported is really so.
"""
import html
import re
import sys

TEXT = re.compile(r'<g transform="translate\(([-\d.]+),([-\d.]+)\)( rotate\([-\d.]+\))?"[^>]*font-size="([\d.]+)"\s+'
                  r'text-anchor="(\w+)">\s*<text[^>]*>(.*?)</text>', re.S)
LETTER = 0.52  # of the font's size; DejaVu Sans has 0.6 on average


def texts(path):
    with open(path, encoding='utf-8') as file:
        svg = file.read()
    width, height = (float(re.search(rf'\b{key}="([\d.]+)"', svg).group(1)) for key in ('width', 'height'))
    boxes = []
    for x, y, turned, size, anchor, text in TEXT.findall(svg):
        text = html.unescape(re.sub('<[^>]*>', '', text)).strip()
        x, y, size = float(x), float(y), float(size)
        if turned or not text:
            continue
        long = LETTER * size * len(text)
        left = x - (long if anchor == 'end' else long / 2 if anchor == 'middle' else 0)
        boxes.append((left, left + long, y - 0.62 * size, y, text))
    return width, height, boxes


def faults(path):
    width, height, boxes = texts(path)
    if len(boxes) < 5:
        yield f'only {len(boxes)} texts'
    for left, right, top, bottom, text in boxes:
        if left < -1 or right > width + 1 or top < -1 or bottom > height + 1:
            yield f'"{text}" leaves the picture: {left:.0f} to {right:.0f} of {width:.0f}, {bottom:.0f} of {height:.0f}'
    for i, a in enumerate(boxes):
        for b in boxes[i + 1:]:
            if a[:4] != b[:4] and a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]:
                yield f'"{a[4]}" and "{b[4]}" stand on each other'


found = [f'{path}: {fault}' for path in sys.argv[1:] for fault in faults(path)]
for line in found:
    print(line)
sys.exit(bool(found))
