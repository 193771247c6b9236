"""A line plot as SVG by matplotlib. Deterministic for the same numbers and version of matplotlib."""

import io

from bench_programs import Failed

SETTINGS = {"svg.hashsalt": "psd", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#6a4c93", "#00798c", "#8d6b4f", "#444444", "#c2649a", "#7fa53a")


def need():
    """The module; exits with installation instructions if it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise Failed("plots need matplotlib: python3 -m pip install matplotlib (Debian: python3-matplotlib)") from None
    return matplotlib


def plot(title, x_label, y_label, curves, y_range, x_scale="linear", y_scale="linear"):
    """The SVG's text. `curves`: [(name, [(x, y), …]), …]; values outside `y_range` are drawn at its edge. With
    `x_scale` "log" no x may be 0, with `y_scale` "log" `y_range` begins above 0."""
    matplotlib = need()
    from matplotlib.figure import Figure
    low, high = y_range
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.add_subplot(title=title, xlabel=x_label, ylabel=y_label, ylim=y_range, xscale=x_scale, yscale=y_scale)
        for number, (name, points) in enumerate(curves):
            axes.plot([x for x, _ in points], [min(max(y, low), high) for _, y in points], label=name, linewidth=1.6,
                      color=COLOURS[number % len(COLOURS)], clip_on=False)
        if x_scale == "linear":
            axes.set_xlim(left=0)
        axes.grid(axis="y", color="#dddddd")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
