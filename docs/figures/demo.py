"""Records `make demo` in a terminal, and draws the recording as an animated SVG.

    python docs/figures/demo.py

writes demo.svg next to this script. Waits are shortened; a viewer who prefers no motion sees the
last screen.
"""

import html
import os
import shlex
import subprocess
import textwrap
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TITLE = "make demo"  # The command as the viewer sees it.
# The environment and the BERT must be there.
COMMAND = [*TITLE.split(), "-o", ".venv/installed", "-o", "demo/bert/vocab.txt"]
COLUMNS, ROWS, LINE, MARGIN, TOP = 98, 22, 18, 14, 34
WIDTH, HEIGHT = 2 * MARGIN + 764, TOP + ROWS * LINE + MARGIN
MAX_WAIT, PAUSE, HOLD = 0.6, 0.8, 6.0  # Seconds: between lines, after the command, at the end.
STYLE = """text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}
.back{fill:#f6f8fa;stroke:#8c959f}.text{fill:#24292f}.title{fill:#57606a}.command{font-weight:bold}
@media(prefers-color-scheme:dark){.back{fill:#161b22;stroke:#6e7681}.text{fill:#e6edf3}
.title{fill:#9198a1}}
@media(prefers-reduced-motion:reduce){*{animation:none!important}}
"""


def record():
    """Runs the command; returns (its lines of output as (seconds, text), the seconds it took)."""
    start, lines = time.monotonic(), []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(
        COMMAND, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for line in process.stdout:
            text = line.decode(errors="replace").expandtabs().rstrip()
            lines.append((time.monotonic() - start, text))
            print(text, flush=True)
    if process.returncode:
        raise SystemExit(f"{shlex.join(COMMAND)} failed with exit code {process.returncode}")
    return lines, time.monotonic() - start


def screen_lines(lines):
    """Returns the lines of the screen, with shortened waits: a list of (seconds, text).

    Args:
      lines: list of (seconds, text).
    """
    result, clock, last = [(0.0, f"$ {TITLE}")], PAUSE, 0.0
    for seconds, text in lines:
        clock += min(seconds - last, MAX_WAIT)
        last = seconds
        rows = textwrap.wrap(text, COLUMNS, subsequent_indent="    ", drop_whitespace=False)
        result += [(clock, row) for row in rows or [""]]
    return result


def svg(lines, seconds):
    """Returns the animated SVG.

    Args:
      lines: list of (seconds, text).
      seconds: how long the command took.
    """
    shown = screen_lines(lines)
    total = shown[-1][0] + HOLD
    frames, texts, scroll = [], [], ["0%{transform:none}"]
    for index, (start, text) in enumerate(shown):
        percent = f"{100 * start / total:.2f}%"
        frames.append(f"@keyframes k{index}{{0%{{opacity:0}}{percent},100%{{opacity:1}}}}")
        animation = f' style="animation:k{index} {total:.1f}s step-end infinite"' if index else ""
        name = "text" if index else "text command"
        position = f'x="0" y="{(index + 0.7) * LINE:.1f}"'
        texts.append(f'<text class="{name}" {position}{animation}>{html.escape(text)}</text>')
        if index >= ROWS:
            scroll.append(f"{percent}{{transform:translateY({(ROWS - 1 - index) * LINE}px)}}")
    offset = min(0, ROWS - len(shown)) * LINE
    scroll.append(f"100%{{transform:translateY({offset}px)}}")
    note = f"recorded in {int(seconds) // 60}:{int(seconds) % 60:02}, waits shortened"
    style = STYLE + "".join(frames) + f"@keyframes scroll{{{''.join(scroll)}}}"
    style += f".lines{{transform:translateY({offset}px);"
    style += f"animation:scroll {total:.1f}s step-end infinite}}"
    title_text = f'<text class="title" x="{WIDTH - MARGIN}" y="22" text-anchor="end">{note}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" role="img" aria-label="{TITLE}: terminal recording">\n'
        f"<style>{style}</style>\n"
        f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>\n'
        f"{title_text}\n"
        f'<svg x="{MARGIN}" y="{TOP}" width="{WIDTH - 2 * MARGIN}" height="{ROWS * LINE}">'
        f'<g class="lines">\n' + "\n".join(texts) + "\n</g></svg>\n</svg>\n"
    )


def main():
    """Writes the recording."""
    drawn = svg(*record())
    with open(os.path.join(os.path.dirname(__file__), "demo.svg"), "w", encoding="utf-8") as writer:
        writer.write(drawn)


if __name__ == "__main__":
    main()
