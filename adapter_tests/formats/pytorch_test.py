"""Tests of pytorch.py: files that torch.save wrote, and hostile pickles.

The valid files are in `support/adapterhub`. Most hostile files are built here, from
hand-written pickle instructions.
"""

import collections
import functools
import io
import os
import pickle
import random
import struct
import zipfile

import numpy as np
import safetensors.numpy

from adapter_bert.formats import huggingface, pytorch
from adapter_bert.shell.errors import UserError
from adapter_tests.support import mutations
from adapter_tests.support.refusals import RefusalTestCase

GOLDENS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support")
GOLDENS = os.path.join(GOLDENS, "adapterhub")
ZIP = os.path.join(GOLDENS, "houlsby", "pytorch_model_head.bin")
LEGACY = os.path.join(GOLDENS, "pfeiffer", "pytorch_model_head.bin")

# ---- Parts of a pickle with a dict of one tensor


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def integer(value):
    if 0 <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + struct.pack("<B", len(data)) + data


def integers(*values):
    return b"(" + b"".join(map(integer, values)) + b"t"


def storage(kind="FloatStorage", key="0", length=6, tag="storage"):
    fields = text(tag) + name("torch", kind) + text(key) + text("cpu") + integer(length)
    return b"(" + fields + b"tQ"


def tensor(values=None, offset=0, shape=(2, 3), strides=(3, 1), function="_rebuild_tensor_v2"):
    values = storage() if values is None else values
    hooks = name("collections", "OrderedDict") + b")R"
    view = integer(offset) + integers(*shape) + integers(*strides)
    return name("torch._utils", function) + b"(" + values + view + b"\x89" + hooks + b"tR"


def state(value=None, key=None):
    value = tensor() if value is None else value
    return b"\x80\x02}q\x00(" + (text("weight") if key is None else key) + value + b"u."


VALUES = np.arange(6, dtype="<f4")
BYTES = VALUES.tobytes()


def zipped(content, values=BYTES, compression=zipfile.ZIP_STORED, more=()):
    """Returns a file in the format of PyTorch 1.6."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/data/0", values)
        for entry, data in more:
            archive.writestr(entry, data)
    return stream.getvalue()


def legacy(content, values=BYTES, length=6):
    """Returns a file in the format before PyTorch 1.6."""
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    begin = magic + pickle.dumps(1001, protocol=2) + pickle.dumps(system, protocol=2)
    keys = pickle.dumps(["0"], protocol=2)
    return begin + content + keys + struct.pack("<q", length) + values


class PyTorchTestCase(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        self.path = os.path.join(self.folder, "pytorch_adapter.bin")

    def write(self, content):
        with open(self.path, "wb") as writer:
            writer.write(content)

    def refuse(self, content):
        """Checks that a file is rejected with one sentence that names it; returns the sentence."""
        self.write(content)
        with self.assertRaises(UserError) as caught:
            pytorch.read(self.path)
        mutations.assert_one_sentence(caught.exception, [self.path])
        return str(caught.exception)


class ReadTest(PyTorchTestCase):
    def test_zip_and_legacy_formats_give_equal_tensors(self):
        for content in (zipped(state()), legacy(state())):
            self.write(content)
            (actual,) = pytorch.read(self.path).items()
            self.assertEqual(actual[0], "weight")
            np.testing.assert_array_equal(actual[1], VALUES.reshape(2, 3))

    def test_strided_views_are_read(self):
        for view, expected in (
            ({"shape": (3, 2), "strides": (1, 3)}, VALUES.reshape(2, 3).T),
            ({"shape": (2,), "strides": (2,), "offset": 1}, VALUES[1:4:2]),
            ({"shape": (), "strides": (), "offset": 5}, VALUES[5]),
            ({"shape": (1, 3), "strides": (1 << 62, 1)}, VALUES[np.newaxis, :3]),
        ):
            self.write(zipped(state(tensor(**view))))
            np.testing.assert_array_equal(pytorch.read(self.path)["weight"], expected)

    def test_half_precision_is_widened(self):
        halves = VALUES.astype("<f2")
        self.write(zipped(state(tensor(storage("HalfStorage"))), halves.tobytes()))
        np.testing.assert_array_equal(pytorch.read(self.path)["weight"], VALUES.reshape(2, 3))
        upper = (VALUES.view("<u4") >> 16).astype("<u2")
        self.write(zipped(state(tensor(storage("BFloat16Storage"))), upper.tobytes()))
        np.testing.assert_array_equal(pytorch.read(self.path)["weight"], VALUES.reshape(2, 3))

    def test_ignored_tensors_are_skipped(self):
        positions = text("positions") + tensor(storage("LongStorage", "1"))
        self.write(zipped(state(tensor() + positions)))
        self.assertEqual(set(pytorch.read(self.path, ["positions"])), {"weight"})
        with self.assertRaisesRegex(UserError, "'positions', which is not float32"):
            pytorch.read(self.path)

    def test_state_dict_of_a_model_is_read(self):
        ordered = name("collections", "OrderedDict") + b")Rq\x00("
        parameter = name("torch._utils", "_rebuild_parameter") + b"(" + tensor() + b"\x88"
        parameter += name("collections", "OrderedDict") + b")RtR"
        metadata = b"}" + text("_metadata") + b"}" + text("") + b"}ssb"
        self.write(
            zipped(b"\x80\x02" + ordered + text("weight") + parameter + b"u" + metadata + b".")
        )
        np.testing.assert_array_equal(pytorch.read(self.path)["weight"], VALUES.reshape(2, 3))


class Payload:
    """Creates a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Attributes:
    """Unpickles by importing and creating this class."""


def calls(canary):
    """Returns pickled values that would call, import, build or reduce if they were executed."""
    path, code = text(canary), text(f"__import__('os').mkdir({canary!r})")
    functions = [
        (name("os", "mkdir"), path),
        (name("posix", "system"), text(f"mkdir {canary}")),
        (name("builtins", "eval"), code),
        (name("__builtin__", "eval"), code),  # Python 3 renames the module.
        (name("torch", "load"), path),
        (name("torch._utils", "_rebuild_tensor_v2.__globals__"), path),
        (name("collections", "OrderedDict.fromkeys"), path),
        (name("numpy", "fromfile"), path),
        (name("functools", "partial"), name("os", "mkdir") + path),
        (name("adapter_bert.formats.pytorch", "read"), path),
        (name("", ""), path),
    ]
    values = []
    for function, arguments in functions:
        called = function + b"(" + arguments + b"tR"
        module, attribute = function[1:].decode().split("\n")[:2]
        by_stack = text(module) + text(attribute) + b"\x93"  # STACK_GLOBAL
        values += [
            called,
            function + b"(" + arguments + b"t\x81",  # NEWOBJ
            function + b"(" + arguments + b"t}\x92",  # NEWOBJ_EX
            b"(" + function + arguments + b"o",  # OBJ
            b"(" + arguments + b"i" + function[1:],  # INST
            by_stack + b"(" + arguments + b"tR",
            b"(" + called + b"tQ",  # In place of a tensor's values.
            name("collections", "OrderedDict") + b"(" + called + b"tR",
            name("collections", "OrderedDict") + b")R" + called + b"b",  # BUILD
            tensor(called),
            tensor() + called + b"b",
            b"\x82\x01" + b"(" + arguments + b"tR",  # EXT1
        ]
    return values


class HostileTest(PyTorchTestCase):
    def test_hostile_pickles_are_refused_without_execution(self):
        canary = os.path.join(self.folder, "canary")
        # Python's pickle does execute such a file.
        pickle.loads(state(calls(canary)[0]))
        self.assertTrue(os.path.isdir(canary))
        os.rmdir(canary)
        hostile = []
        for value in calls(canary):
            hostile += [state(value), state(tensor(), text("a") + tensor() + value)]
        values = [Payload(canary), [Payload(canary)], {"weight": Payload(canary)}, Attributes()]
        values += [collections.OrderedDict(weight=Payload(canary)), {Payload(canary): 1}]
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            hostile += [pickle.dumps(value, protocol) for value in values]
        self.assertGreater(len(hostile), 250)
        for content in hostile:
            for form in (zipped, legacy):
                self.refuse(form(content))
                self.assertFalse(os.path.exists(canary), content)

    def test_more_than_two_views_of_one_storage_are_refused(self):
        self.write(zipped(state(tensor() + text("tied") + tensor())))
        self.assertEqual(set(pytorch.read(self.path)), {"weight", "tied"})
        more = b"".join(text(f"w{index}") + tensor() for index in range(2))
        self.assertIn("too many tensors that share", self.refuse(zipped(state(tensor() + more))))

    def test_damaged_zip_header_is_refused(self):
        content = bytearray(zipped(state()))
        content[content.rindex(b"PK\x01\x02") + 6] = 255  # The version that reading needs.
        self.refuse(content)

    def test_invalid_tensors_and_archives_are_refused(self):
        huge, more = 1 << 40, (("archive/data/00", b"x"),)
        views = [
            {"shape": (2, 4), "strides": (4, 1)},
            {"shape": (2, 3), "strides": (4, 1)},
            {"shape": (huge,), "strides": (0,)},
            {"shape": (huge, huge), "strides": (0, 0)},
            {"shape": (2, 3), "strides": (3,)},
            {"shape": (-2, 3), "strides": (3, 1)},
            {"offset": 1},
            {"offset": huge},
            {"offset": -1},
            {"shape": (1,) * 70, "strides": (1,) * 70},
        ]
        values = [tensor(**view) for view in views]
        values += [
            tensor(storage(length=length), shape=(length,), strides=(1,))
            for length in (7, huge, 1 << 62)
        ]
        values += [
            tensor(storage(key="1")),
            tensor(storage(key="../data.pkl")),
            tensor(storage(kind="ComplexFloatStorage")),
            tensor(storage(kind="HalfStorage")),
            tensor(storage(tag="module")),
            tensor(integer(1)),
            tensor(storage("LongStorage")),
            tensor() + text("b") + tensor(storage("HalfStorage")),
            name("torch", "FloatStorage"),
            name("collections", "OrderedDict") + b"(}tR",
            name("torch._utils", "_rebuild_tensor_v2") + b"N}" + text("apply") + b"Ns\x86b",
            storage(),
            integer(5),
            b"N",
            b"}",
            b"(" + tensor() + b"t",
        ]
        for value in values:
            for form in (zipped, legacy):
                self.refuse(form(state(value)))
        for content in (b"", b".", b"N.", b"}", b"\x80\x02}h\x05.", b"(((((.", b"Q.", b"R.", b"u."):
            self.refuse(zipped(content))
            self.refuse(legacy(content))
        for key in (b"N", integer(3), b")", tensor()):
            self.refuse(zipped(state(key=key)))
        self.assertIn("compressed", self.refuse(zipped(state(), compression=zipfile.ZIP_DEFLATED)))
        self.refuse(zipped(state(), VALUES.tobytes() + b"\0"))
        self.refuse(zipped(state(), more=(("other/data.pkl", state()), *more)))
        self.refuse(zipped(state(), more=(("archive/byteorder", b"big"),)))
        self.refuse(legacy(state(), length=5))
        self.refuse(legacy(state(), VALUES.tobytes()[:-1]))

    def test_number_of_instructions_is_limited(self):
        for body in (b"}" * 2_000_000, b"(" * 2_000_000, b"}q\x00" + b"h\x00" * 2_000_000):
            self.assertIn("too many instructions", self.refuse(zipped(b"\x80\x02" + body + b".")))
        # As many nested tuples as are admitted are hashed and freed.
        self.refuse(zipped(b"\x80\x02})" + b"\x85" * 79_000 + b"Ns."))
        self.refuse(zipped(b"\x80\x02}r\xff\xff\xff\xff."))  # A memo of 4 billion places.

    def test_overlapping_zip_entries_are_rejected(self):
        # The directory record of each entry points to the same 100 kB.
        values, count = bytes(100_000), 200
        tensors = [
            text(str(index)) + tensor(storage(key=str(index), length=25_000), 0, (25_000,), (1,))
            for index in range(count)
        ]
        content = b"\x80\x02}(" + b"".join(tensors) + b"u."
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("archive/data.pkl", content)
            archive.writestr("archive/data/0", values)
            first = archive.getinfo("archive/data/0")
            for index in range(1, count):
                entry = zipfile.ZipInfo(f"archive/data/{index}")
                for field in ("header_offset", "CRC", "file_size", "compress_size"):
                    setattr(entry, field, getattr(first, field))
                archive.filelist.append(entry)
                archive.NameToInfo[entry.filename] = entry
        self.refuse(stream.getvalue())

    def test_truncated_files_are_refused(self):
        generator = random.Random(0)
        for path in (ZIP, LEGACY):
            with open(path, "rb") as reader:
                content = reader.read()
            for end in [0, 1, 10, *(generator.randrange(len(content)) for _ in range(60))]:
                self.refuse(content[:end])

    def test_a_damaged_file_is_loaded_or_rejected(self):
        for path in (ZIP, LEGACY):
            with open(path, "rb") as reader:
                contents = {"weights.bin": reader.read()}

            def read(folder):
                pytorch.read(os.path.join(folder, "weights.bin"))

            mutations.check(contents, read)


class WithoutFilesTest(PyTorchTestCase):
    def test_missing_files_and_folders_are_refused(self):
        for path in (self.path, self.folder):
            with self.assertRaisesRegex(UserError, f"{path}: cannot be read"):
                pytorch.read(path)

    def test_pipes_and_devices_are_refused_at_once(self):
        for name in ("a.bin", "a.safetensors"):
            path = os.path.join(self.folder, name)
            for make in (os.mkfifo, functools.partial(os.symlink, "/dev/zero")):
                make(path)
                self.assert_refused([path, "not a regular file"], huggingface.read_tensors, path)
                os.remove(path)

    def test_safetensors_are_rejected(self):
        self.assertIn("does not begin like one", self.refuse(safetensors.numpy.save({"a": VALUES})))
