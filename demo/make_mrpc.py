"""Writes the demo's sentence pairs, in the format of GLUE's MRPC, from `frames.json`.

    python demo/make_mrpc.py [--output_dir=demo/MRPC]

Each non-paraphrase comes with a paraphrase about the same situation that shares as many words, so
counting common words does not separate them; the meaning does. The output is the same on every
Python and platform.

An event is one fact: (frame, outcome, fillers by slot). Two sentences about one event are
paraphrases.

The file has the frames by subject, and their shared fillers, `pools`. A frame is a situation. Each
of its outcomes is a different fact, so two wordings of one outcome are paraphrases and wordings of
two outcomes are not. A frame's `wordings` apply to all outcomes, which supply their forms
(`{moved}`: "rose", "fell"); an outcome's `wordings` apply only to it. Wordings correspond by
position: the same position under two outcomes is the closest near miss.

In a wording, `{name}` is a slot: a form of the outcome, or a filler from the frame's `slots`, or
else from the pools (`{company2}` is a second filler of `{company}`). `[this|that]` are synonyms.
Every wording has every slot of its frame, so no paraphrase omits a fact. Fillers fit after "a", not
"an". `swap` names two slots whose exchange yields another fact.

All content is invented; companies, people and events are fictitious.
"""

import argparse
import json
import os
import random
import re

HERE = os.path.dirname(os.path.abspath(__file__))

with open(os.path.join(HERE, "frames.json"), encoding="utf-8") as reader:
    _CONTENT = json.load(reader)
POOLS = _CONTENT["pools"]
FRAMES = [frame for frames in _CONTENT["frames"].values() for frame in frames]

SEED = 2019
SIZES = {"train": 1200, "dev": 300, "test": 300}
# The kinds of non-paraphrases, in twentieths. Another outcome or topic is easy for a pretrained
# encoder; another filler and swapped roles need closer reading and stay a minority.
NEGATIVES = ["topic"] * 10 + ["outcome"] * 6 + ["filler"] * 3 + ["swap"]
# What a sentence may be about: frames that share one of these slots serve the kind "topic".
ENTITIES = ["company", "person", "city", "country", "team", "university"]
# Share of pairs in which both sentences have the same wording, apart from synonyms: near misses.
SAME_WORDING = 0.4
# Number of paraphrases to try for a non-paraphrase before drawing another one.
TRIES = 40


def pick(rng, items):
    """Returns one of `items`; only `Random.random` is guaranteed to be the same on every Python."""
    return items[int(rng.random() * len(items))]


def slots(frame):
    """Returns the names of the frame's slots, from the first wording, as every wording has all."""
    names = re.findall(r"{(\w+)}", frame["wordings"][0])
    return [name for name in names if name not in frame["outcomes"][0]]


def unused(frame, name, values):
    """Returns the fillers for the slot `name` that do not occur in `values`."""
    pool = frame.get("slots", {}).get(name) or POOLS[name.rstrip("2")]
    return [filler for filler in pool if filler not in values.values()]


def fill(rng, frame, known):
    """Returns a distinct filler for each slot of the frame, from `known` or else at random."""
    values = {name: known[name] for name in slots(frame) if name in known}
    for name in slots(frame):
        if name not in values:
            values[name] = pick(rng, unused(frame, name, values))
    return values


def tell(rng, event, position):
    """Returns the sentence for an event with the wording at `position` (from 0, cyclic)."""
    frame, outcome, values = event
    wordings = frame["wordings"] + outcome["wordings"]
    text = wordings[position % len(wordings)].format(**dict(values, **outcome))
    while "[" in text:
        text = re.sub(r"\[([^][]*)\]", lambda match: pick(rng, match.group(1).split("|")), text)
    return text[0].upper() + text[1:]


def entities(frame):
    return [name for name in slots(frame) if name in ENTITIES]


def allows(frame, kind):
    """Returns whether `contrast` can apply this kind to an event of the frame."""
    return bool(entities(frame)) if kind == "topic" else kind != "swap" or "swap" in frame


def contrast(rng, event, kind):
    """Returns an event that differs by `kind`, one of NEGATIVES; the same event for None."""
    frame, outcome, values = event
    if kind == "outcome":
        outcome = pick(rng, [other for other in frame["outcomes"] if other is not outcome])
    elif kind == "topic":
        shared = pick(rng, entities(frame))
        others = [other for other in FRAMES if other is not frame]
        frame = pick(rng, [other for other in others if shared in slots(other)])
        outcome, values = pick(rng, frame["outcomes"]), fill(rng, frame, values)
    elif kind == "filler":
        # Two times may be compatible ("on Friday", "last week"); other fillers are not.
        name = pick(rng, [name for name in slots(frame) if name != "when"])
        values = dict(values, **{name: pick(rng, unused(frame, name, values))})
    elif kind == "swap":
        one, other = frame["swap"]
        values = dict(values, **{one: values[other], other: values[one]})
    return frame, outcome, values


def draw(rng, frame, kind):
    """Returns two sentences, on an event of the frame and on one that differs by `kind`."""
    event = frame, pick(rng, frame["outcomes"]), fill(rng, frame, {})
    positions = range(len(frame["wordings"] + event[1]["wordings"]))
    first = pick(rng, positions)
    second = first if rng.random() < SAME_WORDING else pick(rng, positions)
    pair = tell(rng, event, first), tell(rng, contrast(rng, event, kind), second)
    return pair if rng.random() < 0.5 else pair[::-1]


def surface(pair):
    """Returns surface features of a pair: word overlap, difference of lengths, and numbers."""
    one, other = (set(text.lower().split()) for text in pair)
    lengths = [len(text.split()) for text in pair]
    return (
        10 * len(one & other) // len(one | other),
        10 * len(one & other) // min(len(one), len(other)),
        abs(lengths[0] - lengths[1]) // 3,
        any(word.isdigit() for word in one ^ other),
    )


def draw_twins(rng, kind, seen):
    """Returns a paraphrase and a non-paraphrase with equal surface features, both not in `seen`."""
    frames = [frame for frame in FRAMES if allows(frame, kind)]
    while True:
        frame = pick(rng, frames)
        negative = draw(rng, frame, kind)
        for _ in range(TRIES):
            positive = draw(rng, frame, None)
            fresh = seen.isdisjoint([frozenset(positive), frozenset(negative)])
            if fresh and positive[0] != positive[1] and surface(positive) == surface(negative):
                return positive, negative


def make_split(rng, size, seen):
    """Returns `size` shuffled rows (label, pair), half of each label; adds the pairs to `seen`."""
    rows = []
    for number in range(size // 2):
        positive, negative = draw_twins(rng, NEGATIVES[number % len(NEGATIVES)], seen)
        seen.update([frozenset(positive), frozenset(negative)])
        rows += [(1, positive), (0, negative)]
    return sorted(rows, key=lambda row: rng.random())


def write_split(path, rows, first_id, labelled):
    """Writes a file in GLUE's format: a BOM and labels in train and dev, an index in test."""
    header = "Quality" if labelled else "index"
    lines = [header + "\t#1 ID\t#2 ID\t#1 String\t#2 String\n"]
    for index, (label, (one, other)) in enumerate(rows):
        first = label if labelled else index
        ident = first_id + 2 * index
        lines.append(f"{first}\t{ident}\t{ident + 1}\t{one}\t{other}\n")
    with open(path, "wb") as stream:
        stream.write("".join(lines).encode("utf-8-sig" if labelled else "utf-8"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", default=os.path.join(HERE, "MRPC"))
    output_dir = parser.parse_args().output_dir
    os.makedirs(output_dir, exist_ok=True)
    rng, seen, next_id = random.Random(SEED), set(), 1000000
    for split, size in SIZES.items():
        rows = make_split(rng, size, seen)
        path = os.path.join(output_dir, split + ".tsv")
        write_split(path, rows, next_id, labelled=split != "test")
        next_id += 2 * size


if __name__ == "__main__":
    main()
