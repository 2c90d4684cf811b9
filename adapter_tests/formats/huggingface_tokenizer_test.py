"""Tests of huggingface_tokenizer.py, with files as transformers 4 and 5 write them."""

import copy
import json
import os
import tempfile
from unittest import mock

import tokenization
from adapter_bert.formats import huggingface_tokenizer
from adapter_tests.support.refusals import RefusalTestCase

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##ä", "b", "covid19"]
SPECIAL = {"special": True, "single_word": False, "lstrip": False, "normalized": False}
FAST = {
    "version": "1.0",
    "added_tokens": [
        {"id": index, "content": token, **SPECIAL} for index, token in enumerate(TOKENS[:5])
    ],
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token: index for index, token in enumerate(TOKENS)},
    },
}


def changed(part, **fields):
    """Returns `FAST` with other fields in a part."""
    content = copy.deepcopy(FAST)
    content[part] = {**content[part], **fields}
    return content


class TokenizerTestCase(RefusalTestCase):
    def write(self, vocabulary=None, **contents):
        """Writes vocab.txt, if given, and JSON files; returns their new folder."""
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        if vocabulary is not None:
            contents["vocab.txt"] = vocabulary
        for name, content in contents.items():
            is_text = name.endswith(".txt")
            path = os.path.join(folder, name if is_text else name + ".json")
            with open(path, "w", encoding="utf-8") as writer:
                writer.write(content if is_text else json.dumps(content))
        return folder

    def read(self, *arguments, vocab_size=9, **contents):
        return huggingface_tokenizer.read(self.write(*arguments, **contents), vocab_size)

    def refuse(self, parts, *arguments, **contents):
        self.assert_refused(parts, self.read, *arguments, **contents)


TEXT = "".join(token + "\n" for token in TOKENS)


class ReadTest(TokenizerTestCase):
    def test_tokenizer_json_alone_gives_vocabulary_and_casing(self):
        cased = changed("normalizer", lowercase=False)
        old = copy.deepcopy(FAST)
        del old["model"]["type"]
        for content, expected in ((FAST, True), (cased, False), (old, True)):
            actual = self.read(tokenizer=content)
            self.assertEqual((actual.tokens, actual.do_lower_case), (TOKENS, expected))

    def test_vocab_txt_stays_the_vocabulary(self):
        for contents in ({}, {"tokenizer": FAST}, {"tokenizer_config": {"do_lower_case": True}}):
            actual = self.read(TEXT, **contents)
            self.assertIsNone(actual.tokens)
            self.assertEqual(os.path.basename(actual.vocab_file), "vocab.txt")
            self.assertIs(actual.do_lower_case, True if contents else None)

    def test_ids_without_a_token_stay_unused(self):
        vocab = {token: index for index, token in enumerate(TOKENS) if token != "b"}
        tokens = self.read(tokenizer=changed("model", vocab=vocab)).tokens
        self.assertEqual([a == b for a, b in zip(tokens, TOKENS)].count(False), 1)
        self.assertIn(" ", tokens[7])  # No text has such a token.

    def test_vocab_size_must_not_be_below_the_vocabulary(self):
        for contents in ({"tokenizer": FAST}, {"vocabulary": TEXT}):
            self.refuse(["9 tokens", "vocab_size is 8"], vocab_size=8, **contents)
            with mock.patch.object(tokenization.logging, "warning") as warning:
                self.read(vocab_size=16, **contents)
            warning.assert_called_once()
        self.refuse(["last line, a blank one"], TEXT + "\n")

    def test_other_tokenizers_are_refused(self):
        for part, name, value in (
            ("normalizer", "type", "NFC"),
            ("normalizer", "strip_accents", False),
            ("normalizer", "handle_chinese_chars", False),
            ("normalizer", "clean_text", False),
            ("pre_tokenizer", "type", "Whitespace"),
            ("model", "unk_token", "<unk>"),
            ("model", "continuing_subword_prefix", ""),
            ("model", "vocab", {"a": -1}),
            ("model", "vocab", {"a": 1 << 40}),
            ("model", "vocab", {"a": 0, "b": 0}),
            ("model", "vocab", {"a\n": 0}),
            ("model", "vocab", {"a": "0"}),
            ("model", "vocab", {}),
            ("model", "vocab", ["a"]),
        ):
            self.refuse([], tokenizer=changed(part, **{name: value}))
        self.refuse(
            ["tokenizer.json", "normalizer.type"], TEXT, tokenizer={**FAST, "normalizer": None}
        )
        self.refuse(["files are damaged"], tokenizer={"model": 3})
        for name, fields in (
            ("tokenizer_config", {"cls_token": "<s>"}),
            ("tokenizer_config", {"unk_token": {"content": "<unk>", **SPECIAL}}),
            ("tokenizer_config", {"tokenizer_class": "XLMRobertaTokenizer"}),
            ("tokenizer_config", {"tokenizer_class": "BertweetTokenizer"}),
            ("special_tokens_map", {"sep_token": "</s>"}),
            ("special_tokens_map", {"bos_token": "[BOS]"}),
        ):
            self.refuse(
                [f"{name}.json: ", *fields.get("tokenizer_class", "").split()],
                TEXT,
                **{name: fields},
            )

    def test_contradictions_are_refused(self):
        vocab = {token: index for index, token in enumerate(reversed(TOKENS))}
        reordered = changed("model", vocab=vocab)
        longer = changed("model", vocab={**FAST["model"]["vocab"], "c": 9})
        for content in (reordered, longer):
            self.refuse(["tokenizer.json", "vocab.txt"], TEXT, tokenizer=content)
        self.refuse(
            [
                "tokenizer.json: lowercase is True",
                "do_lower_case in tokenizer_config.json is False",
            ],
            tokenizer=FAST,
            tokenizer_config={"do_lower_case": False},
        )


class AddedTokensTest(TokenizerTestCase):
    def test_added_tokens_are_refused_and_named(self):
        drug = {"id": 9, "content": "[DRUG]", **SPECIAL}
        for name, contents in (
            ("added_tokens.json", {"added_tokens": {"[DRUG]": 9, "covid20": 10}}),
            ("tokenizer.json", {"tokenizer": {**FAST, "added_tokens": [drug]}}),
            ("tokenizer_config.json", {"tokenizer_config": {"added_tokens_decoder": {"9": drug}}}),
            (
                "tokenizer_config.json",
                {"tokenizer_config": {"extra_special_tokens": ["[DRUG]"]}},
            ),
            (
                "special_tokens_map.json",
                {"special_tokens_map": {"additional_special_tokens": ["[DRUG]"]}},
            ),
        ):
            for vocab_size in (9, 16):  # With room for them, too.
                self.refuse([name, "'[DRUG]'"], TEXT, vocab_size=vocab_size, **contents)
        # In the vocabulary, too: BERT's tokenizer splits it at the brackets.
        text = TEXT.replace("covid19", "[DRUG]")
        self.refuse(["'[DRUG]'"], text, added_tokens={"[DRUG]": 8})
        # Of another id.
        self.refuse(["'covid19'"], TEXT, added_tokens={"covid19": 9}, vocab_size=16)
        self.refuse(["'Covid'"], TEXT.replace("covid19", "Covid"), added_tokens={"Covid": 8})

    def test_added_tokens_that_bert_keeps_whole_are_harmless(self):
        decoder = {str(entry["id"]): entry for entry in FAST["added_tokens"]}
        actual = self.read(
            TEXT,
            added_tokens={"covid19": 8},
            tokenizer=FAST,
            tokenizer_config={"added_tokens_decoder": decoder, "additional_special_tokens": []},
            special_tokens_map={"cls_token": "[CLS]", "mask_token": {"content": "[MASK]"}},
        )
        self.assertIs(actual.do_lower_case, True)
        cased = TEXT.replace("covid19", "Covid")
        config = {"do_lower_case": False}
        self.read(cased, added_tokens={"Covid": 8}, tokenizer_config=config)

    def test_damaged_files_are_refused(self):
        for contents in (
            {"added_tokens": {"a": "b"}},
            {"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "a"}}}},
            {"tokenizer_config": {"added_tokens_decoder": {"5": "a"}}},
            {"tokenizer_config": {"extra_special_tokens": [3]}},
            {"tokenizer": {**FAST, "added_tokens": [3]}},
        ):
            self.refuse([], TEXT, **contents)
