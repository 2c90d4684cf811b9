"""Lists the mutants of a module as JSON, with cosmic-ray's operators; for mutants.py."""

import json
import sys

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

# Of the ten and more that could stand in an operator's place, those that are most like it.
_BINARY = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul")
_COMPARISONS = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE")
_COMPARISONS += ("GtE_Gt", "GtE_Lt", "Is_IsNot", "IsNot_Is")
_OTHERS = ("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub", "AddNot")
_OTHERS += ("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd")
_OTHERS += ("ExceptionReplacer", "NumberReplacer", "RemoveDecorator", "ZeroIterationForLoop")
OPERATORS = [
    *("ReplaceBinaryOperator_" + swap for swap in _BINARY),
    *("ReplaceComparisonOperator_" + swap for swap in _COMPARISONS),
    *_OTHERS,
]


def mutants(source):
    """Yields (operator's name, mutated source) of every place that an operator changes."""
    nodes = list(ast_nodes(get_ast(source)))
    for name in OPERATORS:
        operator = get_operator("core/" + name)()
        count = sum(1 for node in nodes for _ in operator.mutation_positions(node))
        for occurrence in range(count):
            yield name, mutate_code(source, operator, occurrence)


if __name__ == "__main__":
    json.dump(list(mutants(sys.stdin.read())), sys.stdout)
