"""Lines, points, stacked bars and bars in groups as small SVGs that follow light and dark."""

import math

STYLE = """<style>
svg{--ink:#1c1e21;--soft:#63676e;--hair:#e4e2dc;--c0:#24588f;--c1:#c4561b;--c2:#3f7d58;--c3:#a8862c;--c4:#7a4e9c;--c5:#8b9099;--on:#fff;font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){svg{--ink:#e9e7e2;--soft:#9a9da3;--hair:#33373c;--c0:#7db2ec;--c1:#f0975c;--c2:#7cc096;--c3:#dcb95c;--c4:#b992d6;--c5:#70757d;--on:#141618}}
text{fill:var(--soft)}.k{fill:var(--ink)}.t{text-anchor:middle}.y{text-anchor:end}.h{stroke:var(--hair)}
</style>"""


def frame(title, width, height):
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">', STYLE,
            f'<text class="k" x="44" y="16">{title}</text>']


def grid(out, left, right, y, high, unit, top):
    for i in range(5):
        value = high * i / 4
        out.append(f'<line class="h" x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
                   f'<text class="y" x="{left - 6}" y="{y(value) + 4:.1f}">{value:g}</text>')
    out.append(f'<text x="2" y="{top - 8}">{unit}</text>')


def save(path, out):
    with open(path, "w") as file:
        file.write("\n".join(out + ["</svg>"]) + "\n")


def lines(path, title, xs, series, high, unit, x_unit, width=760, height=320):
    """series: (name, colour 0-5, values, are points instead of a line)."""
    left, right, top, bottom = 44, width - 12, 62, height - 44
    y = lambda value: bottom - (bottom - top) * value / high
    x = lambda i: left + 30 + (right - left - 60) * i / (len(xs) - 1)
    out = frame(title, width, height)
    grid(out, left, right, y, high, unit, top)
    at = left
    for name, colour, values, are_points in series:
        fill = f'fill="none" stroke="var(--c{colour})" stroke-width="2"' if are_points else f'fill="var(--c{colour})"'
        out.append(f'<circle cx="{at + 5}" cy="34" r="4.5" {fill}/><text x="{at + 15}" y="38">{name}</text>')
        at += 34 + 6.4 * len(name)
        if not are_points:
            path_data = "M" + "L".join(f"{x(i):.1f} {y(value):.1f}" for i, value in enumerate(values))
            out.append(f'<path d="{path_data}" fill="none" stroke="var(--c{colour})" stroke-width="2"/>')
        for i, value in enumerate(values):
            out.append(f'<circle cx="{x(i):.1f}" cy="{y(value):.1f}" r="{5 if are_points else 3}" {fill}><title>{value:.4g}</title></circle>')
    for i, value in enumerate(xs):
        out.append(f'<text class="t" x="{x(i):.1f}" y="{bottom + 18}">{value if isinstance(value, str) else f"{value:,}"}</text>')
    out.append(f'<text class="t" x="{(left + right) / 2}" y="{height - 8}">{x_unit}</text>')
    save(path, out)


def scatter(path, title, points, unit, x_unit, width=860, height=420):
    """points: (name, colour 0-5, is a ring instead of a disc, x, y, lowest and highest y). x is logarithmic; y begins near the lowest value and
    ends a tenth above: what is higher stands at the upper edge with its value."""
    left, right, top, bottom = 52, width - 30, 44, height - 46
    low = min(point[5] for point in points)
    high = max(min(max(point[6] for point in points), 1.1 * low), 1.01 * low)
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    first, last = (edge(math.log10(point[3]) for point in points) for edge in (min, max))
    first, last = math.floor(first - 0.1), math.ceil(last + 0.1)
    x = lambda value: left + (right - left) * (math.log10(value) - first) / (last - first)
    y = lambda value: max(top, bottom - (bottom - top) * (value - low) / (high - low))
    out = frame(title, width, height)
    for i in range(6):
        value = low + (high - low) * i / 5
        out.append(f'<line class="h" x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
                   f'<text class="y" x="{left - 6}" y="{y(value) + 4:.1f}">{value:.3f}</text>')
    for power in range(first, last + 1):
        out.append(f'<line class="h" x1="{x(10.0**power):.1f}" x2="{x(10.0**power):.1f}" y1="{top}" y2="{bottom}"/>'
                   f'<text class="t" x="{x(10.0**power):.1f}" y="{bottom + 18}">{10.0**power:,g}</text>')
    taken = [(x(point[3]) - 6, y(point[4]) - 7, x(point[3]) + 6, y(point[4]) + 7) for point in points]
    for name, colour, is_ring, at, value, least, most in sorted(points, key=lambda point: point[4]):
        paint = f'fill="none" stroke="var(--c{colour})" stroke-width="2"' if is_ring else f'fill="var(--c{colour})"'
        out.append(f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y(least):.1f}" y2="{y(most):.1f}" stroke="var(--c{colour})" stroke-width="2"/>'
                   f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="4.5" {paint}><title>{name}: {value:.4f}, {at:.4g}</title></circle>')
        label = name if value <= high else f"{name}: {value:.3f}"
        long = 6.4 * len(label)
        # The nearest place for the name, right or left of the point, that nothing else has.
        places = [(side, shift) for shift in sorted(range(-160, 161, 4), key=abs) for side in (1, -1)]
        for side, shift in places:
            begin = x(at) + 9 if side > 0 else x(at) - 9 - long
            box = (begin, y(value) + shift - 6, begin + long, y(value) + shift + 6)
            is_inside = box[0] >= left and box[2] <= right and box[1] >= top - 12 and box[3] <= bottom
            if is_inside and not any(box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken):
                break
        taken.append(box)
        out.append(f'<text x="{box[0]:.1f}" y="{box[3] - 2:.1f}">{label}</text>')
    out.append(f'<text x="2" y="{top - 12}">{unit}</text><text class="t" x="{(left + right) / 2}" y="{height - 8}">{x_unit}</text>')
    save(path, out)


def stacks(path, title, groups, parts, high, unit, width=860, height=340):
    """groups: (label, label above). parts: (name, colour, values), from the bottom up, one value per group."""
    left, right, top, bottom = 44, width - 12, 74, height - 46
    y = lambda value: bottom - (bottom - top) * value / high
    out = frame(title, width, height)
    grid(out, left, right, y, high, unit, top)
    at = left
    for name, colour, _ in parts:
        out.append(f'<rect x="{at}" y="29" width="11" height="11" rx="2" fill="var(--c{colour})"/><text x="{at + 16}" y="39">{name}</text>')
        at += 34 + 6.4 * len(name)
    slot = (right - left) / len(groups)
    bar = min(64, 0.7 * slot)
    for g, (label, above) in enumerate(groups):
        middle, height_so_far = left + slot * (g + 0.5), 0.0
        for name, colour, values in parts:
            if values[g] <= 0:
                continue
            size = (bottom - top) * values[g] / high
            out.append(f'<rect x="{middle - bar / 2:.1f}" y="{y(height_so_far + values[g]):.1f}" width="{bar:.1f}" height="{size:.2f}" '
                       f'fill="var(--c{colour})"><title>{name}: {values[g]:.3g} {unit}</title></rect>')
            height_so_far += values[g]
        out.append(f'<text class="t k" x="{middle:.1f}" y="{y(height_so_far) - 6:.1f}">{above}</text>')
        for n, line in enumerate(label.split("\n")):
            out.append(f'<text class="t" x="{middle:.1f}" y="{bottom + 17 + 14 * n}">{line}</text>')
    save(path, out)


def bars(path, title, groups, series, high, unit="%", width=980, height=300, marked="measured"):
    """Side by side. groups: names, in lines. series: (name, colour, values, measured values or None), one value per group; measured ones
    (or what `marked` says) are lines across the bars."""
    left, right, top, bottom = 44, width - 12, 58, height - 46
    y = lambda value: bottom - (bottom - top) * value / high
    mark = 'fill="none" stroke="var(--c1)" stroke-width="2"'
    out = frame(title, width, height)
    grid(out, left, right, y, high, unit, top)
    at = left
    for name, colour, _, _ in series:
        out.append(f'<rect x="{at}" y="28" width="11" height="11" rx="2" fill="var(--c{colour})"/><text x="{at + 16}" y="38">{name}</text>')
        at += 34 + 6.6 * len(name)
    if any(measured for *_, measured in series):
        out.append(f'<path d="M{at} 34h12" {mark}/><text x="{at + 17}" y="38">{marked}</text>')
    slot = (right - left) / len(groups)
    bar = min(46, slot * .8 / len(series))
    for g, group in enumerate(groups):
        middle = left + slot * (g + .5)
        for n, line in enumerate(group.split("\n")):
            out.append(f'<text class="t" x="{middle:.1f}" y="{bottom + 18 + 14 * n}">{line}</text>')
        for s, (_, colour, values, measured) in enumerate(series):
            x = middle + (s - len(series) / 2) * bar
            out.append(f'<rect x="{x + 1:.1f}" y="{y(values[g]):.1f}" width="{bar - 2:.1f}" height="{bottom - y(values[g]):.1f}" rx="2" '
                       f'fill="var(--c{colour})"/><text class="t" x="{x + bar / 2:.1f}" y="{y(values[g]) + 15:.1f}" font-size="11" '
                       f'style="fill:var(--on)">{values[g]:.1f}</text>')
            if measured:
                out.append(f'<path d="M{x - 1:.1f} {y(measured[g]):.1f}h{bar + 2:.1f}" {mark}/>')
    save(path, out)
