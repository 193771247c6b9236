"""A line plot as SVG, with nothing but the standard library."""

import html
import math

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 36, 48
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#6a4c93", "#00798c", "#8d6b4f")


def ticks(low, high, wanted=6):
    """Round numbers from low to high."""
    step = 10 ** math.floor(math.log10((high - low) / wanted))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= wanted)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def plot(title, x_label, y_label, curves, y_range):
    """The SVG's text. `curves`: [(name, [(x, y), …]), …]; what lies above or below `y_range` is drawn at its edge."""
    y_low, y_high = y_range
    x_high = max(x for _, points in curves for x, _ in points)

    def at(x, y):
        y = min(max(y, y_low), y_high)
        return (LEFT + (WIDTH - LEFT - RIGHT) * x / x_high,
                HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - y_low) / (y_high - y_low))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="20" font-size="14">{html.escape(title)}</text>']
    for value in ticks(0, x_high):
        x, y = at(value, y_low)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{value:g}</text>')
    for value in ticks(y_low, y_high):
        x, y = at(0, value)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(x_label)}</text>')
    parts.append(f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
                 f'{html.escape(y_label)}</text>')
    for i, (name, points) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        line = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        y = TOP + 10 + 18 * i
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {y}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 36}" y="{y + 4}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
