"""Every flag of every script is read by what its `run` hands the flags to, and no other is read.

Parsed flags are called `values`, or `_values` in an object. They are read as `values.name` or
`values["name"]`; in a loop over names that are written there also as `values[name]` or
`getattr(values, name)`. What a function reads after `"name" in values` may be missing.
"""

import ast
import glob
import importlib
import os
import sys

import tensorflow.compat.v1 as tf
from absl import flags

import convert_checkpoint
from adapter_tests import structure_test

SCRIPTS = ("run_classifier", "run_squad", "run_sweep", "run_report", "run_ablation", "run_baseline")
SCRIPTS += ("export_model", "serve", "embedding_module")
sys.path.append(os.path.join(structure_test.ROOT, "demo"))


def is_flags(node):
    return getattr(node, "id", None) == "values" or getattr(node, "attr", None) == "_values"


def _value_of(node):
    """A constant's value; Python 3.7 calls it s, of which later ones warn."""
    return node.value if hasattr(node, "value") else getattr(node, "s", None)


def text_of(node):
    """The str that a node is a literal of; None for others."""
    return _value_of(node) if is_text(node) else None


def is_text(node):
    value = _value_of(node)
    return type(node).__name__ in ("Constant", "Str") and isinstance(value, str)


def looped(node):
    """Name → the texts that it goes through, for the loops of a function over literals."""
    loops = [inner for inner in ast.walk(node) if isinstance(inner, (ast.For, ast.comprehension))]
    found = {}
    for loop in loops:
        items = getattr(loop.iter, "elts", [])
        firsts = [item.elts[0] if isinstance(item, ast.Tuple) else item for item in items]
        targets = getattr(loop.target, "elts", [loop.target])
        found[getattr(targets[0], "id", None)] = {text_of(item) for item in firsts if is_text(item)}
    return found


class Part:
    """A function or class of a module: which flags it reads, and what it hands them to.

    Args:
      node: of the syntax tree.
      local: name → (module, name) of what the module defines or imports from others.
      modules: names of all modules.
    """

    def __init__(self, node, local, modules):
        self.reads, self.calls = set(), set()
        self._local, self._modules, self._loops = local, modules, looped(node)
        for base in getattr(node, "bases", ()):
            self._add_call(base)
        for inner in ast.walk(node):
            self._add(inner)
        asked = [n for n in ast.walk(node) if isinstance(n, ast.Compare) and is_text(n.left)]
        self.reads -= {text_of(n.left) for n in asked if is_flags(n.comparators[0])}

    def _add(self, node):
        if isinstance(node, ast.Attribute) and is_flags(node.value):
            self.reads.add(node.attr)
        elif isinstance(node, ast.Subscript) and is_flags(node.value):
            is_index = type(node.slice).__name__ == "Index"  # Before Python 3.9.
            self._add_key(node.slice.value if is_index else node.slice)
        elif isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if getattr(node.func, "id", None) == "getattr" and is_flags(node.args[0]):
                self._add_key(node.args[1])
            elif any(map(is_flags, given)):
                self._add_call(node.func)

    def _add_key(self, key):
        texts = {text_of(key)} if is_text(key) else self._loops.get(getattr(key, "id", None), ())
        self.reads.update(texts)

    def _add_call(self, target):
        if getattr(target, "id", None) in self._local:
            self.calls.add(self._local[target.id])
        elif getattr(getattr(target, "value", None), "id", None) in self._modules:
            self.calls.add((target.value.id, target.attr))


def parts_of(module, text, modules):
    """(module, name) → `Part`, of the functions and classes of a module's text."""
    tree = ast.parse(text)
    local = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            local[node.name] = (module, node.name)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            local.update({alias.name: (node.module, alias.name) for alias in node.names})
    owned = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return {(module, node.name): Part(node, local, modules) for node in owned}


def reads_from(start, parts):
    """The flags that are read by a part and by what it hands them to."""
    reads, seen, left = set(), set(), [start]
    while left:
        key = left.pop()
        if key in parts and key not in seen:
            seen.add(key)
            reads |= parts[key].reads
            left += parts[key].calls
    return reads


def parts_of_all():
    modules = {*structure_test.modules(), *SCRIPTS}
    parts = {}
    for module in modules:
        path = importlib.util.find_spec(module).origin
        with open(path, encoding="utf-8") as reader:
            parts.update(parts_of(module, reader.read(), modules))
    return parts


def defined(script):
    values = flags.FlagValues()
    importlib.import_module(script).define_flags(values)
    return values


def arguments_of(script, trees):
    """What a script has argparse read.

    Args:
      script: a module's name.
      trees: name → syntax tree, of all modules of its folder.

    Returns:
      (names of the arguments that it defines, or functions of modules that it calls; names that it
      reads, or any module that it imports).
    """
    calls = [node for node in ast.walk(trees[script]) if isinstance(node, ast.Call)]
    defined_names = added_by(trees[script])
    for call in calls:
        module = getattr(getattr(call.func, "value", None), "id", None)
        if module in trees:
            left_out = {k.arg for k in call.keywords if getattr(k.value, "value", None) is False}
            defined_names |= added_by(trees[module], call.func.attr) - left_out
    read, seen, left = set(), set(), [script]
    while left:
        name = left.pop()
        if name in trees and name not in seen:
            seen.add(name)
            nodes = list(ast.walk(trees[name]))
            read |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and is_parsed(n.value)}
            left += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    return defined_names, read


def functions_of(tree):
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def added_by(tree, function=None):
    """The arguments that a module adds to parsers; or one of its functions, and those it calls."""
    parts = [n for n in functions_of(tree) if function in (None, n.name)]
    calls = [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Call)]
    adding = [call for call in calls if getattr(call.func, "attr", None) == "add_argument"]
    found = {text_of(argument).lstrip("-") for call in adding for argument in call.args}
    for call in calls if function is not None else ():
        found |= added_by(tree, getattr(call.func, "id", ""))
    return found


def is_parsed(node):
    """Whether a node is what argparse read, as our scripts call it."""
    names = ("values", "arguments", "given", "_ARGUMENTS")
    called = getattr(getattr(node, "func", None), "attr", None)
    return getattr(node, "id", None) in names or called == "parse_args"


class FlagReadsTest(tf.test.TestCase):
    def test_flags_are_read_and_reads_are_of_flags(self):
        parts = parts_of_all()
        for script in SCRIPTS:
            read, own = reads_from((script, "run"), parts), set(defined(script))
            self.assertEqual(sorted(own - read), [], f"{script}: defined, but not read")
            self.assertEqual(sorted(read - own), [], f"{script}: read, but not defined")

    def test_what_it_finds(self):
        text = """
def run(values):
    for name in ("c", "d"):
        values[name].present, getattr(values, name)
    one(values.a, values["b"].value)
    if "h" in values: values.h
    Two(1, some=values)
class Three:
    def of(self): return self._values.e, self.other.f
class Two(Three): pass
def one(values): return values.g
"""
        parts = parts_of("a_script", text, {"a_script"})
        self.assertEqual(reads_from(("a_script", "run"), parts), set("abcde"))

    def test_arguments_of_benchmarks_are_read_by_their_script_or_what_it_imports(self):
        scripts = 0
        for folder in ("benchmarks", "robustness", "demo"):
            trees = {}
            for path in glob.glob(os.path.join(structure_test.ROOT, folder, "*.py")):
                with open(path, encoding="utf-8") as reader:
                    trees[os.path.basename(path)[:-3]] = ast.parse(reader.read())
            for script in (n for n in trees if "main" in {f.name for f in functions_of(trees[n])}):
                defined_names, read = arguments_of(script, trees)
                self.assertEqual(sorted(defined_names - read), [], f"{folder}/{script}")
                scripts += bool(defined_names)
        self.assertGreater(scripts, 25)

    def test_what_it_finds_of_arguments(self):
        texts = {
            "one": """
import two
def main():
    parser = two.arguments(c=False)
    parser.add_argument("--a")
    return [parser.parse_args().a, two.show(values)]
""",
            "two": """
def arguments(c=True):
    parser = further()
    if c: parser.add_argument("--c")
    return parser
def further(): Parser().add_argument("--d").add_argument("--e")
def other(): Parser().add_argument("--f")
def show(values): return values.d, time.e
""",
            "three": "def show(values): return values.e",
        }
        trees = {name: ast.parse(text) for name, text in texts.items()}
        self.assertEqual(arguments_of("one", trees), (set("ade"), set("ad")))

    def test_arguments_of_convert_checkpoint_are_those_of_its_functions(self):
        for function, arguments in convert_checkpoint._COMMANDS.items():
            names = {name.lstrip("-") for name in arguments}
            code = function.__code__
            count = code.co_argcount + code.co_kwonlyargcount
            self.assertEqual(names, set(code.co_varnames[:count]), function.__name__)


if __name__ == "__main__":
    tf.test.main()
