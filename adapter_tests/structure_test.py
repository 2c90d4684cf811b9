"""The house as CONTRIBUTING.md draws it: who may import whom, a test file each, no large parts."""

import ast
import glob
import io
import os
import re
import sys
import tokenize
import unittest

import tensorflow.compat.v1 as tf

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def modules():
    return {os.path.basename(path)[:-3] for path in glob.glob(os.path.join(ROOT, "*.py"))}


def imports_of(module):
    """The project's own modules that a module imports."""
    with open(os.path.join(ROOT, module + ".py"), encoding="utf-8") as reader:
        tree = ast.parse(reader.read())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found & modules()


def texts():
    """Path → text, of all Python there is: modules, tests, and the scripts beside them."""
    found = {}
    for folder in ("", "adapter_tests", "benchmarks", "demo", "robustness"):
        for path in sorted(glob.glob(os.path.join(ROOT, folder, "*.py"))):
            with open(path, encoding="utf-8") as reader:
                found[os.path.relpath(path, ROOT)] = reader.read()
    return found


def lengths(text):
    """Yields (name, lines of code) of each function: blank lines, comments and docstring apart."""
    apart = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in apart:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            own = set(range(node.lineno, node.end_lineno + 1))
            if ast.get_docstring(node) is not None:
                own -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
            yield node.name, len(own & code)


def table():
    """CONTRIBUTING.md's table: rank → the cell that lists its modules."""
    with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as reader:
        return dict(re.findall(r"^\| (\w+) \| (`.*) \|$", reader.read(), re.MULTILINE))


def ranks():
    """Module → its place in the table, counted from the top; in a cell, in "a → b", a imports b."""
    places = {}
    for row, cell in enumerate(table().values()):
        for group in cell.split(";"):
            for step, part in enumerate(group.split("→")):
                for module in re.findall(r"`(\w+)`", part):
                    places[module] = row + step / 10
    return places


class StructureTest(tf.test.TestCase):
    def test_every_module_has_its_place_and_imports_only_from_below(self):
        places = ranks()
        self.assertEqual(set(places), modules())
        with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as reader:
            files = re.findall(r"^\| (`.*\.py`.*) \| ", reader.read(), re.MULTILINE)
        self.assertLessEqual(modules(), set(re.findall(r"`(\w+)\.py`", " ".join(files))))
        for module in sorted(modules()):
            for imported in imports_of(module):
                self.assertLess(places[module], places[imported], f"{module} → {imported}")

    def test_every_module_has_a_test_file(self):
        tests = glob.glob(os.path.join(ROOT, "adapter_tests", "*_test.py"))
        tested = {os.path.basename(path)[: -len("_test.py")] for path in tests}
        self.assertEqual(modules() - tested, set())

    def test_coverage_is_that_of_domain_and_leaves(self):
        with open(os.path.join(ROOT, "pyproject.toml"), encoding="utf-8") as reader:
            measured = re.search(r"(?s)\nsource_pkgs = \[(.*?)\]", reader.read()).group(1)
        wanted = re.findall(r"`(\w+)`", table()["domain"] + table()["leaves"])
        self.assertEqual(re.findall(r'"(\w+)"', measured), sorted(wanted))

    def test_flags_are_read_from_what_a_main_hands_on(self):
        for module in sorted(modules()):
            with open(os.path.join(ROOT, module + ".py"), encoding="utf-8") as reader:
                text = reader.read()
            self.assertNotRegex(text, r"FLAGS\.\w", module)

    @unittest.skipIf(sys.version_info < (3, 8), "ast does not say where a function ends")
    def test_functions_fit_a_screen_and_modules_stay_small(self):
        found = texts()
        long = {
            f"{path}: {name}": length
            for path, text in found.items()
            for name, length in lengths(text)
            if length > 40
        }
        self.assertEqual(long, {})
        large = {path: text.count("\n") for path, text in found.items() if text.count("\n") > 600}
        self.assertEqual(large, {})

    @unittest.skipIf(sys.version_info < (3, 8), "ast does not say where a function ends")
    def test_lengths_are_those_of_code(self):
        text = 'def one(a):\n    """Two\n    lines."""\n\n    # Why.\n    return [\n    a]\nx = 1\n'
        self.assertEqual(list(lengths(text)), [("one", 3)])


if __name__ == "__main__":
    tf.test.main()
