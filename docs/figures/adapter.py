"""Draws an adapter in a Transformer layer, as in Figure 2 of Houlsby et al. 2019.

    python docs/figures/adapter.py

writes adapter.svg next to this script. The picture has a white card as its background, so that it
reads the same on light and dark pages.
"""

import os

WIDTH, HEIGHT = 496, 440
INK, FROZEN, TRAINED = "#333333", ("#f2f2f2", "#8c8c8c"), ("#cfe8d5", "#1b7837")
LAYER_X, BOX_WIDTH, BOX_HEIGHT = 120, 174, 28  # The layer's axis; its boxes.
ADAPTER_X, LEFT, RIGHT, TOP, BOTTOM = 363, 254, 488, 58, 366  # The adapter's axis and its frame.
STEP, RADIUS, UNIT_STEP = 37, 9, 23  # Between boxes; of "+"; between units.
PLUS_1, PLUS_2 = 3, 8  # Positions of the layer's two additions, counted from the bottom.
# The layer from the bottom up; None is an addition.
LAYER = (
    ("Multi-head attention", FROZEN),
    ("Attention projection", FROZEN),
    ("Adapter", TRAINED),
    None,
    ("LayerNorm", TRAINED),
    ("Feed-forward layer", FROZEN),
    ("Feed-forward projection", FROZEN),
    ("Adapter", TRAINED),
    None,
    ("LayerNorm", TRAINED),
)


def text(x, y, words, *, size=13.5, anchor="middle", bold=False):
    """Returns words, centred vertically at y."""
    weight = "bold" if bold else "normal"
    return (
        f'<text x="{x}" y="{y + size * 0.35:.1f}" font-size="{size}" font-weight="{weight}"'
        f' text-anchor="{anchor}" fill="{INK}">{words}</text>'
    )


def rectangle(x, y, width, height, fill, stroke, more=""):
    """Returns a rectangle with round corners; (x, y) is its upper left corner."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}"'
        f' stroke="{stroke}" stroke-width="1.5" {more}/>'
    )


def box(x, y, words, colors):
    """Returns a labelled box centred at (x, y)."""
    corner = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
    return rectangle(*corner, BOX_WIDTH, BOX_HEIGHT, *colors) + text(
        x, y, words, bold=colors is TRAINED
    )


def line(*points, arrow=True, dashed=False):
    """Returns a line through (x, y) points, with an arrow at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    end = ' marker-end="url(#arrow)"' if arrow else ""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.3"{end}{dashes}/>'


def plus(x, y):
    """Returns an addition."""
    return f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="white" stroke="{INK}"/>' + text(
        x, y, "+", size=15
    )


def units(y, count):
    """Returns a row of the adapter's units."""
    first = ADAPTER_X - (count - 1) * UNIT_STEP / 2
    return "".join(
        f'<circle cx="{first + index * UNIT_STEP}" cy="{y}" r="7" fill="white" stroke="{INK}"/>'
        for index in range(count)
    )


def projection(y, words, *, below, above):
    """Returns a projection between two rows of units as a trapezoid centred at y."""
    corners = [(-below / 2, 22), (below / 2, 22), (above / 2, -22), (-above / 2, -22)]
    path = " ".join(f"{ADAPTER_X + x},{y + dy}" for x, dy in corners)
    fill, stroke = TRAINED
    shape = f'<polygon points="{path}" fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>'
    return shape + "".join(
        text(ADAPTER_X, y + dy, part, size=12.5, bold=not index)
        for index, (dy, part) in enumerate(zip((-8, 9), words))
    )


def layer():
    """Returns the Transformer layer, on the left."""
    bottom = HEIGHT - 54
    heights = [bottom - STEP * position for position in range(len(LAYER))]
    parts = [text(LAYER_X, 16, "A Transformer layer", size=15, bold=True)]
    below = HEIGHT - 14
    for y, entry in zip(heights, LAYER):
        half = BOX_HEIGHT / 2 if entry else RADIUS
        parts += [line((LAYER_X, below), (LAYER_X, y + half + 1))]
        parts += [box(LAYER_X, y, *entry) if entry else plus(LAYER_X, y)]
        below = y - half
    parts += [line((LAYER_X, below), (LAYER_X, below - 11))]
    # Each residual connection begins where its sub-layer's input does.
    side = LAYER_X - BOX_WIDTH / 2 - 20
    for start, end in ((HEIGHT - 24, heights[PLUS_1]), (heights[4] - STEP / 2, heights[PLUS_2])):
        corners = (LAYER_X, start), (side, start), (side, end), (LAYER_X - RADIUS - 1, end)
        parts += [line(*corners)]
    for corner, y in ((TOP, heights[7] - BOX_HEIGHT / 2), (BOTTOM, heights[7] + BOX_HEIGHT / 2)):
        edge = LAYER_X + BOX_WIDTH / 2
        parts += [line((edge, y), (LEFT, corner), arrow=False, dashed=True)]
    return parts


def adapter():
    """Returns the adapter's inside, on the right."""
    wide, narrow = 7 * UNIT_STEP, 3 * UNIT_STEP
    skip = RIGHT - 16
    frame = rectangle(
        LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP, "none", TRAINED[1], 'stroke-dasharray="4 3"'
    )
    return [
        text(ADAPTER_X, 16, "An adapter", size=15, bold=True),
        frame,
        line((ADAPTER_X, BOTTOM + 14), (ADAPTER_X, 346)),
        units(337, 7),
        projection(303, ("Down-projection", "d → m"), below=wide, above=narrow + 58),
        units(269, 3),
        line((ADAPTER_X, 261), (ADAPTER_X, 248)),
        rectangle(ADAPTER_X - 52, 222, 104, 25, *FROZEN),
        text(ADAPTER_X, 234.5, "Nonlinearity"),
        line((ADAPTER_X, 221), (ADAPTER_X, 208)),
        units(199, 3),
        projection(165, ("Up-projection", "m → d"), below=narrow + 58, above=wide),
        units(131, 7),
        line((ADAPTER_X, 123), (ADAPTER_X, 96)),
        plus(ADAPTER_X, 85),
        line((ADAPTER_X, BOTTOM - 9), (skip, BOTTOM - 9), (skip, 85), (ADAPTER_X + RADIUS + 1, 85)),
        line((ADAPTER_X, 75), (ADAPTER_X, 42)),
    ]


def legend():
    """Returns what the colours and letters mean."""
    parts = []
    for y, colors, words in (
        (390, TRAINED, "trained for each task"),
        (408, FROZEN, "frozen, or without parameters"),
    ):
        parts += [rectangle(LEFT, y - 6, 18, 12, *colors)]
        parts += [text(LEFT + 25, y, words, size=12.5, anchor="start")]
    sizes = "d: hidden size; m: --adapter_size"
    return [*parts, text(LEFT, 427, sizes, size=12.5, anchor="start")]


def start(width, height):
    """Returns the lines that begin a picture: its size, its arrows and its card."""
    marker = '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif">',
        f'<defs>{marker} markerHeight="6" orient="auto"><path d="M0,0 L8,4 L0,8 z"'
        f' fill="{INK}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="6" fill="white"/>',
    ]


def svg():
    """Returns the picture as SVG."""
    return "\n".join([*start(WIDTH, HEIGHT), *layer(), *adapter(), *legend(), "</svg>", ""])


if __name__ == "__main__":
    with open(os.path.join(os.path.dirname(__file__), "adapter.svg"), "w", encoding="utf-8") as out:
        out.write(svg())
