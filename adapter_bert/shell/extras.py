"""The extras of the package, and what installs them."""

from adapter_bert import IS_INSTALLED

# Extra of the package → a clone's file of the same requirements.
_REQUIREMENTS = {
    "train": "requirements.txt",
    "serve": "requirements-serving.txt",
    "hub": "requirements-hub.txt",
    "baseline": "requirements-baseline.txt",
    "data": "requirements-data.txt",
}


def install_command(extra: str) -> str:
    """Returns the command that installs what an extra of this package needs, in backquotes."""
    if IS_INSTALLED:
        return f"`pip install 'adapter-bert[{extra}]'`"
    return f"`pip install -r {_REQUIREMENTS[extra]}`"
