"""tf.train.Example, written and read without TensorFlow.

The message is small and fixed (source: tensorflow/core/example/{example,feature}.proto). To encode it by hand takes a
tenth of the time of the protobuf runtime, and a shard task imports neither the runtime nor TensorFlow:

    Example  { Features features = 1; }
    Features { map<string, Feature> feature = 1; }      an entry: key = 1, value = 2
    Feature  { BytesList = 1 | FloatList = 2 | Int64List = 3 }, each with repeated value = 1

Of other programs, tf.train.SequenceExample is read, too:

    SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
    FeatureLists    { map<string, FeatureList> feature_list = 1; }
    FeatureList     { repeated Feature feature = 1; }

Unknown fields are skipped, and lists of numbers may be packed or not, as the encoding of protobuf defines it (source:
protobuf.dev/programming-guides/encoding).
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

Feature = bytes | int | float | Sequence[int] | Sequence[float] | Sequence[bytes]

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_KINDS = {"bytes": _BYTES_LIST, "float": _FLOAT_LIST, "int64": _INT64_LIST}
_NAMES = {number: name for name, number in _KINDS.items()}
_VARINT, _FIXED64, _DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)
"""Wire types: the lowest three bits of the tag of a field. The other bits are its number."""
_FIRST, _SECOND = 1 << 3 | _DELIMITED, 2 << 3 | _DELIMITED
"""Tags of the fields 1 and 2 of all messages but lists of numbers. A field 1 or 2 of another wire type is unknown."""
_TAGS_OF_NUMBERS = {"float": (_FIRST, 1 << 3 | _FIXED32), "int64": (_FIRST, 1 << 3 | _VARINT)}
"""Tags of the values of a list: packed, or one number."""

Values = tuple[str, Sequence[Any]]
"""The kind of a feature ("bytes", "float" or "int64"; empty if it has no list), and its values."""


class Parsed(NamedTuple):
    """The content of a record of another program."""

    features: dict[str, Values]
    """The features of a tf.train.Example, or the context of a tf.train.SequenceExample."""
    feature_lists: dict[str, list[Values]] | None
    """The features of each step. None if the record has no feature lists, which makes it a tf.train.Example."""


def encode(features: Mapping[str, Feature]) -> bytes:
    """Return a serialized tf.train.Example. Features are ordered by key, so that equal features give equal bytes."""
    return _delimited(1, encode_entries(features))


def encode_entries(features: Mapping[str, Feature]) -> bytes:
    """Return the entries of a map of features. Several of these joined are one map."""
    # Protobuf allows any order of the entries of a map, and equal images must give equal bytes.
    return b"".join(
        _delimited(1, _delimited(1, key.encode()) + _delimited(2, _feature(features[key]))) for key in sorted(features)
    )


@lru_cache(8192)
def cached_entry(key: str, value: bytes | int) -> bytes:
    """Return the entry of one feature. It is cached, because many images share a height or a format."""
    return encode_entries({key: value})


def example_head(length: int) -> bytes:
    """Return the bytes before the entries of a serialized tf.train.Example. `length` is the size of all entries."""
    return b"\n" + _varint(length)


def entries_of(serialized: bytes) -> bytes:
    """Return the entries of a serialized tf.train.Example, which begins with `example_head`."""
    return serialized[_read_varint(serialized, 1)[1] :]


def value_entry_head(key: str, kind: str, length: int) -> bytes:
    """Return the bytes of an entry before its only value, or before all its numbers, which have `length` bytes.

    A large value need not be copied then.
    """
    head = value_head(length)
    return list_entry_head(key, kind, len(head) + length) + head


def list_entry_head(key: str, kind: str, length: int) -> bytes:
    """Return the bytes of an entry before its values with their heads, which have `length` bytes together.

    With 0, this is the whole entry of an empty list.
    """
    # b"\n" and b"\x12" are the tags of the fields 1 and 2 with wire type 2.
    values = bytes((_KINDS[kind] << 3 | 2,)) + _varint(length)
    named = _delimited(1, key.encode()) + b"\x12" + _varint(len(values) + length) + values
    return b"\n" + _varint(len(named) + length) + named


def value_head(length: int) -> bytes:
    """Return the bytes before one value of `length` bytes in a list. The numbers of a list are one value."""
    return b"\n" + _varint(length)


def decode(serialized: bytes) -> dict[str, list[Any]]:
    """Return the features of a serialized tf.train.Example, each as a list of bytes, float or int.

    Raises ValueError if the bytes are no such message.
    """
    return {key: list(values) for key, (_, values) in parse(serialized).features.items()}


def parse(serialized: bytes) -> Parsed:
    """Return the content of a serialized tf.train.Example or tf.train.SequenceExample.

    Raises ValueError if the bytes are neither.
    """
    try:
        return _parse(serialized)
    except UnicodeDecodeError as error:
        raise ValueError("not a tf.train.Example: the name of a feature is not UTF-8") from error


def _parse(serialized: bytes) -> Parsed:
    features: dict[str, Values] = {}
    feature_lists: dict[str, list[Values]] | None = None
    for tag, message in _fields(serialized):
        if tag == _FIRST:
            for entry in _all_of(_FIRST, message):
                key, values = _named_feature(entry)
                features[key] = values
        elif tag == _SECOND:
            feature_lists = feature_lists or {}
            for entry in _all_of(_FIRST, message):
                key, steps = _key_and_value(entry)
                feature_lists[key] = [_values(feature) for feature in _all_of(_FIRST, steps)]
    return Parsed(features, feature_lists)


def _named_feature(entry: bytes) -> tuple[str, Values]:
    # Nearly all entries are short and hold one list. Without this shortcut, they would take three times as long.
    start = entry[1] + 8 if len(entry) > 1 else 0
    key, kind, size = _short_head(entry[:start])
    if kind and size == len(entry) - start:
        content = entry[start:]
        return key, (kind, (content,) if kind == "bytes" else _numbers(kind, content))
    key, feature = _key_and_value(entry)
    return key, _values(feature)


@lru_cache(8192)
def _short_head(head: bytes) -> tuple[str, str, int]:
    """Return key, kind and size of the only value, or of all numbers, of an entry that begins with `head`.

    The kind is empty if the entry has another layout, or a length that needs two bytes.
    """
    if len(head) < 8 or head[0] != 0x0A or head[1] > 0x7F:
        return "", "", 0
    value_tag, feature_size, list_tag, list_size, number_tag, size = head[-6:]
    is_plain = (value_tag, number_tag) == (0x12, 0x0A) and (feature_size, list_size) == (size + 4, size + 2)
    if not is_plain or feature_size > 0x7F or list_tag & 7 != 2 or list_tag >> 3 not in _NAMES:
        return "", "", 0
    return head[2:-6].decode(), _NAMES[list_tag >> 3], size


def _key_and_value(entry: bytes) -> tuple[str, bytes]:
    """Return the key of an entry of a map, and its value."""
    key, value = b"", b""
    for tag, content in _fields(entry):
        if tag == _FIRST:
            key = content
        elif tag == _SECOND:
            value += content  # Two messages joined are the message that holds the fields of both.
    return key.decode(), value


def _feature(value: Feature) -> bytes:
    values: Sequence[Any] = [value] if isinstance(value, bytes | int | float) else value
    if values and isinstance(values[0], bytes):
        return _delimited(_BYTES_LIST, b"".join(_delimited(1, item) for item in values))
    if values and isinstance(values[0], float):
        return _delimited(_FLOAT_LIST, _delimited(1, struct.pack(f"<{len(values)}f", *values)))
    # A list without values does not show its type, and becomes an int64 list here: see `list_entry_head`.
    # Negative numbers are encoded as 64 bits in two's complement.
    return _delimited(_INT64_LIST, _delimited(1, b"".join(_varint(value & 0xFFFFFFFFFFFFFFFF) for value in values)))


def _delimited(number: int, content: bytes) -> bytes:
    """Return a length-delimited field (wire type 2)."""
    return b"".join((bytes((number << 3 | 2,)), _varint(len(content)), content))


def _varint(value: int) -> bytes:
    """Encode a number with seven bits in each byte, the lowest first. The top bit is set on all bytes but the last."""
    output = bytearray()
    while value > 0x7F:
        output.append(value & 0x7F | 0x80)
        value >>= 7
    output.append(value)
    return bytes(output)


def _values(message: bytes) -> Values:
    """Return the kind and the values of a serialized Feature."""
    kind, lists = "", b""
    for tag, content in _fields(message):
        if tag & 7 == _DELIMITED and (name := _NAMES.get(tag >> 3)):
            # A feature has one list. Of lists of different kinds, the last one counts.
            kind, lists = name, lists + content if name == kind else content
    if kind == "bytes":
        return kind, list(_all_of(_FIRST, lists))
    return (kind, _all_numbers(kind, lists)) if kind else ("", ())


def _all_numbers(kind: str, content: bytes) -> Sequence[Any]:
    """Return the numbers of a serialized list, which may be divided into several packed fields and single numbers."""
    tags = _TAGS_OF_NUMBERS[kind]
    blocks = [_numbers(kind, block) for tag, block in _fields(content) if tag in tags]
    return blocks[0] if len(blocks) == 1 else [number for block in blocks for number in block]


def _numbers(kind: str, packed: bytes) -> Sequence[Any]:
    if kind == "int64":
        # If no byte has its top bit set, each byte is a number.
        return tuple(packed) if packed.isascii() else list(_signed_varints(packed))
    if len(packed) % 4:
        raise ValueError(f"not a tf.train.Example: a list of floats has {len(packed)} bytes")
    return struct.unpack(f"<{len(packed) // 4}f", packed)


def _signed_varints(packed: bytes) -> Iterator[int]:
    offset = 0
    while offset < len(packed):
        value, offset = _read_varint(packed, offset)
        value &= 0xFFFFFFFFFFFFFFFF  # Ten bytes hold 70 bits.
        yield value - (1 << 64) if value >> 63 else value


def _all_of(wanted: int, message: bytes) -> Iterator[bytes]:
    """Yield the content of each field with a tag."""
    return (content for tag, content in _fields(message) if tag == wanted)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each field."""
    offset, size = 0, len(message)
    while offset < size:
        # A tag and a length of one byte are read here, because a call would take longer than all else.
        if message[offset] < 0x80:
            tag, offset = message[offset], offset + 1
        else:
            tag, offset = _read_varint(message, offset)
        if tag & 7 == _DELIMITED and offset < size and message[offset] < 0x80:
            offset += 1
            end = offset + message[offset - 1]
        else:
            offset, end = _bounds(message, offset, tag)
        if end > size or tag < 8:  # No field has the number 0.
            raise ValueError(f"not a tf.train.Example: the field with the tag {tag} before byte {offset} is damaged")
        yield tag, message[offset:end]
        offset = end


def _bounds(message: bytes, offset: int, tag: int) -> tuple[int, int]:
    """Return where the content of a field begins and ends. `offset` is that of the byte after its tag."""
    kind = tag & 7
    if kind == _DELIMITED:
        length, offset = _read_varint(message, offset)
        return offset, offset + length
    if kind == _VARINT:
        return offset, _read_varint(message, offset)[1]
    if kind == _GROUP:
        return offset, _end_of_group(message, offset, tag)
    if kind in (_FIXED32, _FIXED64):
        return offset, offset + (4 if kind == _FIXED32 else 8)
    raise ValueError(f"not a tf.train.Example: the tag {tag} before byte {offset}")


def _end_of_group(message: bytes, offset: int, tag: int) -> int:
    """Return where a group ends. Only unknown fields are groups, and a group may hold others."""
    open_groups = [tag >> 3]
    while open_groups:
        inner, offset = _read_varint(message, offset)
        if inner & 7 == _GROUP:
            open_groups.append(inner >> 3)
        elif inner & 7 != _GROUP_END:
            offset = _bounds(message, offset, inner)[1]
        elif open_groups.pop() != inner >> 3:
            raise ValueError(f"not a tf.train.Example: a group ends before byte {offset} that did not begin")
    return offset


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        # A number of 64 bits has at most ten bytes. More are damage.
        if offset >= len(message) or shift > 63:
            raise ValueError("not a tf.train.Example: a number extends beyond the end of the record")
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
