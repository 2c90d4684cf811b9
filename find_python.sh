#!/bin/sh
# Prints the first Python of the versions given that can be found: on the path, or where pyenv and uv
# put them.
#     ./find_python.sh 3.13 3.12 3.11 3.10 3.9
for version in "$@"; do
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python \
        "$HOME/.local/bin/python$version" python3 python; do
        # A name on the path may be a shim that finds nothing behind it: only running it tells.
        found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
        if [ "$found" = "$version" ]; then
            command -v "$python"
            exit 0
        fi
    done
done
echo "Error: found no Python $(echo "$*" | sed 's/ /, /g'). Install one with \`apt install python$1 python$1-venv\`, \`brew install python@$1\` or \`uv python install $1\`." >&2
exit 1
