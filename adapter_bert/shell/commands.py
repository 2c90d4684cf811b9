"""The command adapter-bert: each subcommand is a script, with the script's flags.

adapter-bert train --task_name=MRPC        python run_classifier.py --task_name=MRPC
"""

import difflib
import runpy
import sys
from typing import Dict, NamedTuple

import adapter_bert
from adapter_bert.shell import errors
from adapter_bert.shell.errors import UserError


class Command(NamedTuple):
    """A subcommand: the module that it runs, and its line in --help."""

    module: str
    help: str


COMMANDS: Dict[str, Command] = {
    "train": Command("run_classifier", "train, evaluate and predict: classes, pairs, numbers"),
    "squad": Command("run_squad", "train, evaluate and predict: questions on texts (SQuAD)"),
    "tag": Command("run_tagger", "train, evaluate and predict: tags of words"),
    "features": Command("extract_features", "write BERT's outputs for texts"),
    "convert": Command("convert_checkpoint", "convert, describe and push weights and adapters"),
    "export": Command("export_model", "write a SavedModel or an ONNX file"),
    "serve": Command("serve", "answer requests for many tasks by HTTP"),
    "sweep": Command("run_sweep", "train a grid of settings"),
    "report": Command("run_report", "write tables and figures of a sweep"),
    "ablation": Command("run_ablation", "evaluate with the adapters of some layers removed"),
    "baseline": Command("run_baseline", "search for a classifier without BERT"),
    "demo": Command("formats.demo", "download a small BERT, which later commands use by default"),
}


def main() -> None:
    """Runs the subcommand that sys.argv names, and exits."""
    sys.exit(errors.exit_code(_main))


def _main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h"):
        print(_help())
    elif name == "--version":
        print(f"adapter-bert {adapter_bert.__version__}")
    elif name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"adapter-bert {name}: expected one of {', '.join(COMMANDS)}{guess}")
    else:
        sys.argv[1:] = arguments
        module = f"{adapter_bert.__name__}.{COMMANDS[name].module}"
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _help() -> str:
    lines = [f"  {name:10}{command.help}" for name, command in COMMANDS.items()]
    usage = "adapter-bert COMMAND --flag=value ...    adapter-bert COMMAND --help    --version"
    return "\n".join([usage, "", *lines])
