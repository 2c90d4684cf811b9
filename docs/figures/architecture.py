"""Draws the packages by their imports, and the way of a row of text to an adapter.

    python docs/figures/architecture.py

writes architecture.svg next to this script. A package stands above all that it imports; an arrow
is left out where a longer way leads to the same package.
"""

import ast
import glob
import os

from adapter import FROZEN, TRAINED, line, rectangle, start, text

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH, HEIGHT = 900, 716
BOX_WIDTH, BOX_HEIGHT, ROW, BOTTOM = 132, 32, 56, 666
AT_TOP = ("modeling", "optimization", "tokenization", "tuning")
# Package → its column; the others stand in the centre, at 0.
COLUMNS = {
    "formats": -1,
    "tokenization": 1,
    "tuning": -0.5,
    "modeling": 0.5,
    "serving": 1,
    "features": -1,
}
CENTRE, COLUMN = 240, 150
SIDE = 230  # From the centre: where arrows pass by that lead over several rows.
# The way of a row of text: file → what leaves it.
WAY = (
    ("tasks/text/glue.py", "an InputExample per line"),
    ("tokenization.py", "WordPieces"),
    ("tasks/text/classifier_features.py", "token ids"),
    ("training/rows.py", "all rows, as arrays"),
    ("training/input_pipeline.py", "a padded batch"),
    ("training/model_fn.py", "model_fn: a step"),
    ("modeling.py", "output of transformer_layer"),
    ("modeling.py", "feedforward_adapter: output + change"),
)
WAY_X, WAY_TOP, WAY_STEP = 640, 56, 66


def sources():
    """Returns the paths of all modules, from the project's folder."""
    patterns = ("*.py", "adapter_bert/**/*.py", "paper/**/*.py")
    paths = (glob.glob(os.path.join(ROOT, pattern), recursive=True) for pattern in patterns)
    return [os.path.relpath(path, ROOT) for found in paths for path in found]


def package_of(path):
    """Returns the package of a module's path, "scripts" for a script; None for other projects'."""
    first, *rest = path.split("/")
    if first == "adapter_bert":
        if not rest or os.path.exists(os.path.join(ROOT, "adapter_bert", rest[0])):
            return rest[0] if len(rest) > 1 else None
        first = rest[0]  # `adapter_bert.modeling` is the root's.
    if first in (*AT_TOP, "paper"):
        return first
    is_script = not first.startswith("__") and os.path.exists(os.path.join(ROOT, first + ".py"))
    return "scripts" if is_script else None


def imports_of(path):
    """Yields the modules that a file imports when it is imported, as paths."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as reader:
        tree = ast.parse(reader.read())
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.replace(".", "/") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module.replace('.', '/')}/{alias.name}" for alias in node.names)


def arrows():
    """Returns a dict from (package, package that it imports) to a file that does."""
    found = {}
    for path in sorted(sources()):
        package = package_of(path[: -len(".py")])
        for imported in map(package_of, imports_of(path)):
            if package and imported and imported != package:
                found.setdefault((package, imported), path)
    return found


def levels(pairs):
    """Returns a dict from each package to its row: 0, or one more than the highest it imports."""

    def level(package):
        return 1 + max((level(b) for a, b in pairs if a == package), default=-1)

    return {package: level(package) for pair in pairs for package in pair}


def reduced(pairs):
    """Returns the pairs without those that a longer way connects, too."""

    def reaches(start, goal):
        return any(a == start and (b == goal or reaches(b, goal)) for a, b in pairs)

    return {
        (a, b) for a, b in pairs if not any(c == a and d != b and reaches(d, b) for c, d in pairs)
    }


def packages():
    """Returns the packages, on the left."""
    pairs = reduced(arrows())
    rows = levels(pairs)
    places = {
        package: (CENTRE + COLUMN * COLUMNS.get(package, 0), BOTTOM - ROW * row)
        for package, row in rows.items()
    }
    assert len(set(places.values())) == len(places), "Two packages have the same place."
    parts = [text(CENTRE, 18, "Packages", size=15, bold=True)]
    for a, b in sorted(pairs):
        (x, y), (to_x, to_y) = places[a], places[b]
        if rows[a] - rows[b] > 1:
            side = -1 if COLUMNS.get(b, 0) < 0 else 1
            past, edge = CENTRE + side * SIDE, side * BOX_WIDTH / 2
            parts.append(line((x + edge, y), (past, y), (past, to_y), (to_x + edge + side, to_y)))
        else:
            parts.append(line((x, y + BOX_HEIGHT / 2), (to_x, to_y - BOX_HEIGHT / 2 - 1)))
    for package, (x, y) in sorted(places.items()):
        colors = TRAINED if package in (*AT_TOP, "scripts") else FROZEN
        corner = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        parts += [rectangle(*corner, BOX_WIDTH, BOX_HEIGHT, *colors), text(x, y, package)]
    return parts


def way():
    """Returns the way of a row of text, on the right."""
    parts = [text(WAY_X, 18, "From a row of text to an adapter", size=15, bold=True)]
    for index, (file, result) in enumerate(WAY):
        folder = ROOT if file[: -len(".py")] in AT_TOP else os.path.join(ROOT, "adapter_bert")
        if not os.path.exists(os.path.join(folder, file)):
            raise FileNotFoundError(file)
        y = WAY_TOP + index * WAY_STEP
        colors = TRAINED if folder == ROOT else FROZEN
        parts += [rectangle(WAY_X - 125, y - 15, 250, 30, *colors), text(WAY_X, y, file)]
        parts += [line((WAY_X, y + 16), (WAY_X, y + WAY_STEP - 16))]
        parts += [text(WAY_X + 12, y + WAY_STEP / 2, result, size=12.5, anchor="start")]
    return parts


def svg():
    """Returns the picture as SVG."""
    legend = [rectangle(14, HEIGHT - 18, 18, 12, *TRAINED)]
    words = "files at the top level; paper/ is beside adapter_bert/, the others are in it"
    legend += [text(38, HEIGHT - 12, words, size=12.5, anchor="start")]
    return "\n".join([*start(WIDTH, HEIGHT), *packages(), *way(), *legend, "</svg>", ""])


if __name__ == "__main__":
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "architecture.svg")
    with open(path, "w", encoding="utf-8") as writer:
        writer.write(svg())
