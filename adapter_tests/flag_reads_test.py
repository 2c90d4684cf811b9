"""Every flag of every script is read by what its `run` hands the flags to, and no other is read.

Parsed flags are called `values`, or `_values` in an object. They are read as `values.name` or
`values["name"]`; in a loop over names that are written there also as `values[name]` or
`getattr(values, name)`. What a function reads after `"name" in values` may be missing.
"""

import ast
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


def text_of(node):
    """The str that a node is a literal of; None for others."""
    return getattr(node, "value", getattr(node, "s", None)) if is_text(node) else None


def is_text(node):
    value = getattr(node, "value", getattr(node, "s", None))
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

    def test_arguments_of_benchmarks_are_read(self):
        defined_names, read = set(), set()
        for path, text in structure_test.texts().items():
            if path.startswith(("benchmarks", "demo")):
                nodes = list(ast.walk(ast.parse(text)))
                read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
                calls = [node for node in nodes if isinstance(node, ast.Call)]
                calls = [c for c in calls if getattr(c.func, "attr", None) == "add_argument"]
                defined_names |= {text_of(argument) for call in calls for argument in call.args}
        self.assertIn("--peers", defined_names)
        unread = {name for name in defined_names if name.lstrip("-") not in read}
        self.assertEqual(unread, set())

    def test_arguments_of_convert_checkpoint_are_those_of_its_functions(self):
        for function, arguments in convert_checkpoint._COMMANDS.items():
            names = {name.lstrip("-") for name in arguments}
            code = function.__code__
            count = code.co_argcount + code.co_kwonlyargcount
            self.assertEqual(names, set(code.co_varnames[:count]), function.__name__)


if __name__ == "__main__":
    tf.test.main()
