"""The header of a JPEG or PNG file, read with operations of TensorFlow alone.

The exported model runs without this project, and TensorFlow's decoders ignore the EXIF orientation, transparency and
color profiles. This reads what `pipeline.images` takes from Pillow when it prepares an image for training. Sources: ITU
T.81 annex B for JPEG, RFC 2083 for PNG, CIPA DC-008 for EXIF.
"""

from typing import NamedTuple

import tensorflow as tf

from pipeline.images.header import ICC_MARK, PNG_MAGIC
from pipeline.training.served.file_bytes import ALL, RefuseUnless, first, numbers, part, seldom

# The first 16 bits of markers as signed numbers, and the least of 32 bits that begin with a fill byte and 0xff.
_SCAN, _END, _FILL = 0xFFDA - 0x10000, 0xFFD9 - 0x10000, -0x10000
_FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
"""Codes of the frames that libjpeg decodes: baseline, extended and progressive, with Huffman or arithmetic coding."""
_APP1, _ICC, _ADOBE = 0xE1, 0xE2, 0xEE
"""Codes of segments. APP1 holds EXIF or XMP."""
_MAX_SEGMENTS = 2000
"""At most this many segments before the pixels are read. They bound the time that a file can take."""
_MAX_CHUNKS = 20_000
"""At most this many chunks of a PNG, for the same reason: those of 160 MB of pixels, 8 kB in each."""
_MAX_PACKED_BYTES = 1 << 16
"""Maximum size of a compressed color profile. It may inflate to a thousand times its size."""
_ADOBE_SEGMENT = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
_XMP_ORIENTATION = r'^\C*?tiff:Orientation(?:="|>)([0-9])\C*$'
_ORIENTATION, _LONG = 0x0112, 4
"""The tag of the orientation, and the type of a number of 32 bits. Others have 16."""
_NO_PIXELS = (
    "an image is damaged, or a JPEG that is lossless or has more than 8 bits per sample: save it again as an 8-bit "
    "JPEG or PNG"
)
_SPLIT_PROFILE = "a JPEG has a color profile in several parts, which this model does not apply: convert it to sRGB"
_TRANSPARENT_LEVEL = (
    "a PNG has a transparent level or color, and not 8 bits per sample: save it with an alpha channel, or with 8 bits"
)
_TOO_MUCH_METADATA = "a PNG has very many chunks, or a large color profile: save it without metadata, in sRGB"
_HIDDEN_METADATA = "a PNG has compressed EXIF or XMP data, which this model does not read: save it without metadata"


class FileHeader(NamedTuple):
    """What the header of a file says of its pixels. All are scalar tensors."""

    content: tf.Tensor
    """The file, with the marker that TensorFlow needs to read the inks of CMYK as other decoders do."""
    height: tf.Tensor
    """int32, in pixels, as stored."""
    width: tf.Tensor
    channels: tf.Tensor
    """int32: 1 for gray, 3 for colors, 4 for CMYK."""
    has_alpha: tf.Tensor
    """bool: whether a pixel may be transparent."""
    orientation: tf.Tensor
    """int32: the EXIF orientation, from 1 (upright) to 8. Any other number means upright, too."""
    profile: tf.Tensor
    """The ICC profile; empty if there is none."""


def read_jpeg(content: tf.Tensor, refuse_unless: RefuseUnless) -> FileHeader:
    """Return the header of a JPEG."""
    segments = _segments(content)
    offset, code, size, start = tf.unstack(segments, axis=1)
    frame = tf.reduce_max(tf.where(tf.reduce_any(code[:, tf.newaxis] == _FRAMES, 1), offset, 0))
    bits, *sides, channels = tf.unstack(numbers(content, frame + 4, tf.uint8, 6))
    height, width = sides[0] * 256 + sides[1], sides[2] * 256 + sides[3]
    is_decodable = (frame > 0) & (bits == 8) & (height > 0) & (width > 0)
    is_decodable &= (channels == 1) | (channels == 3) | (channels == 4)
    content = refuse_unless(is_decodable, _NO_PIXELS, content)

    def data_of(kind: int, mark: bytes) -> tf.Tensor:
        """Return what follows the mark in the data of the first segment of a kind with it; empty if there is none."""
        is_one = (code == kind) & (start == int.from_bytes(mark[:4], "big"))
        row = tf.argmax(is_one)
        data = part(content, offset[row] + 4, tf.where(tf.reduce_any(is_one), size[row] - 2, 0))
        return tf.where(part(data, 0, len(mark)) == mark, part(data, len(mark), ALL), "")

    profile = data_of(_ICC, ICC_MARK)
    # Number and count of the parts come first.
    profile = refuse_unless(numbers(profile, 1, tf.uint8, 1)[0] <= 1, _SPLIT_PROFILE, profile)
    has_adobe = tf.strings.length(data_of(_ADOBE, b"Adobe")) > 0
    return FileHeader(
        # Without the marker, TensorFlow alone takes a level for the amount of ink instead of the light that it leaves.
        content=tf.cond(
            (channels == 4) & ~has_adobe,
            lambda: tf.strings.join([part(content, 0, 2), _ADOBE_SEGMENT, part(content, 2, ALL)]),
            lambda: content,
        ),
        height=height,
        width=width,
        channels=channels,
        has_alpha=tf.constant(False),
        orientation=_orientation(data_of(_APP1, b"Exif\0\0"), data_of(_APP1, b"http://ns.adobe.com/xap/1.0/\0")),
        profile=part(profile, 2, ALL),
    )


def read_png(content: tf.Tensor, refuse_unless: RefuseUnless) -> FileHeader:
    """Return the header of a PNG."""
    chunks = _chunks(content)
    kind, data = tf.strings.substr(chunks, 0, 4), tf.strings.substr(chunks, 4, ALL)

    def data_of(name: bytes, mark: bytes = b"") -> tf.Tensor:
        return tf.boolean_mask(data, (kind == name) & (tf.strings.substr(data, 0, len(mark)) == mark))

    def has(name: bytes, mark: bytes = b"") -> tf.Tensor:
        return tf.size(data_of(name, mark)) > 0

    width, height = tf.unstack(numbers(content, 16, tf.int32, 2))
    depth, color = tf.unstack(numbers(content, 24, tf.uint8, 2))
    is_whole = (part(content, 12, 4) == b"IHDR") & (width > 0) & (height > 0)
    has_level = has(b"tRNS") & (color != 3)
    in_text = [has(name, b"Raw profile type exif\0") for name in (b"tEXt", b"zTXt", b"iTXt")]
    is_hidden = (tf.reduce_any(in_text) & ~has(b"eXIf")) | has(b"iTXt", b"XML:com.adobe.xmp\0\1")
    content = refuse_unless(is_whole, _NO_PIXELS, content)
    content = refuse_unless(tf.size(kind) < _MAX_CHUNKS, _TOO_MUCH_METADATA, content)
    packed_profile = first(data_of(b"iCCP"))
    is_small = tf.strings.length(packed_profile) <= _MAX_PACKED_BYTES
    packed_profile = refuse_unless(is_small, _TOO_MUCH_METADATA, packed_profile)
    # Pillow compares such a level with pixels that it has scaled to 8 bits.
    content = refuse_unless(~has_level | (depth == 8), _TRANSPARENT_LEVEL, content)
    content = refuse_unless(~is_hidden, _HIDDEN_METADATA, content)
    return FileHeader(
        content=content,
        height=height,
        width=width,
        channels=tf.where((color == 0) | (color == 4), 1, 3),
        has_alpha=(color >= 4) | has(b"tRNS"),
        orientation=_orientation(first(data_of(b"eXIf")), first(data_of(b"iTXt", b"XML:com.adobe.xmp\0"))),
        profile=_inflated(packed_profile),
    )


def _segments(content: tf.Tensor) -> tf.Tensor:
    """Return offset, code, size and the first four bytes of each segment of a JPEG before its pixels, int32 of (n, 4).

    The size counts its own two bytes, but not the two of the marker.
    """
    end = tf.strings.length(content)

    def head(offset: tf.Tensor) -> tf.Tensor:
        # In the order of `words`: marker and size, and what follows them.
        return tf.io.decode_raw(tf.strings.substr(content, offset, 8), tf.int32, little_endian=False, fixed_length=8)

    # A loop of few operations: each of them counts ten times in an ordinary file.
    def is_segment(offset: tf.Tensor, words: tf.Tensor, segments: tf.TensorArray) -> tf.Tensor:
        code = tf.bitwise.right_shift(words[0], 16)
        return (code > -256) & (code != _SCAN) & (code != _END) & (offset < end)

    def step(offset: tf.Tensor, words: tf.Tensor, segments: tf.TensorArray) -> tuple[tf.Tensor, ...]:
        # A fill byte may precede any marker.
        size = tf.where(words[0] >= _FILL, -1, tf.bitwise.bitwise_and(words[0], 0xFFFF))
        after = tf.minimum(offset + 2 + size, end)
        segment = tf.stack([offset, words[0], words[1]])
        return after, head(after), segments.write(segments.size(), segment)

    begin = tf.minimum(2, end)
    found = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[3])
    loop = tf.while_loop(is_segment, step, (begin, head(begin), found), maximum_iterations=_MAX_SEGMENTS)
    offset, first_word, start = tf.unstack(loop[2].stack(), axis=1)
    code = tf.bitwise.bitwise_and(tf.bitwise.right_shift(first_word, 16), 0xFF)
    return tf.stack([offset, code, tf.bitwise.bitwise_and(first_word, 0xFFFF), start], 1)


def _chunks(content: tf.Tensor) -> tf.Tensor:
    """Return the chunks of a PNG, (n,): type and data of each, without the data of the pixels."""
    end = tf.strings.length(content)

    def is_chunk(offset: tf.Tensor, chunks: tf.TensorArray) -> tf.Tensor:
        return (offset > 0) & (offset + 12 <= end)

    def step(offset: tf.Tensor, chunks: tf.TensorArray) -> tuple[tf.Tensor, ...]:
        [length] = tf.unstack(numbers(content, offset, tf.int32, 1))
        is_pixels = part(content, offset + 4, 4) == b"IDAT"
        chunk = part(content, offset + 4, 4 + tf.where(is_pixels, 0, tf.maximum(length, 0)))
        # A length that is damaged ends the loop.
        return tf.where(length >= 0, offset + 12 + length, -1), chunks.write(chunks.size(), chunk)

    found = tf.TensorArray(tf.string, 0, dynamic_size=True, element_shape=[])
    loop = tf.while_loop(is_chunk, step, (tf.constant(len(PNG_MAGIC)), found), maximum_iterations=_MAX_CHUNKS)
    return loop[1].stack()


def _orientation(tiff: tf.Tensor, xmp: tf.Tensor) -> tf.Tensor:
    """Return the orientation of EXIF data, or else of XMP data, or else 1."""

    def stated() -> tf.Tensor:
        orientation = _orientation_in_tiff(tiff)
        return tf.cond(orientation >= 0, lambda: orientation, lambda: _orientation_in_xmp(xmp))

    has_any = tf.strings.length(tiff) + tf.strings.length(xmp) > 0
    return tf.cond(has_any, seldom(stated), lambda: 1)


def _orientation_in_tiff(tiff: tf.Tensor) -> tf.Tensor:
    """Return the orientation in the first directory of EXIF data, or -1."""
    is_little = part(tiff, 0, 2) == b"II"

    def decoded(data: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        little, big = (tf.cast(tf.io.decode_raw(data, dtype, little_endian=each), tf.int32) for each in (True, False))
        return tf.where(is_little, little, big)

    def number(start: tf.Tensor | int, dtype: tf.DType) -> tf.Tensor:
        return first(decoded(part(tiff, start, dtype.size), dtype), -1)

    is_tiff = tf.strings.length(tiff) >= 8
    start = tf.cond(is_tiff, lambda: number(4, tf.int32), lambda: 0)
    is_there = is_tiff & (start >= 8) & (start <= tf.strings.length(tiff) - 2)

    def orientation() -> tf.Tensor:
        count = tf.minimum(number(start, tf.uint16), (tf.strings.length(tiff) - start - 2) // 12)
        # Tag, type, two words of the count, and two of the value.
        words = tf.reshape(decoded(part(tiff, start + 2, 12 * count), tf.uint16), [-1, 6])
        # A number of 32 bits has its low word first or last.
        value = tf.where(words[:, 1] == _LONG, tf.maximum(words[:, 4], words[:, 5]), words[:, 4])
        return first(tf.boolean_mask(value, words[:, 0] == _ORIENTATION), -1)

    return tf.cond(is_there, orientation, lambda: -1)


def _orientation_in_xmp(xmp: tf.Tensor) -> tf.Tensor:
    # The end is found if nothing else is.
    digit = tf.strings.regex_replace(tf.strings.join([xmp, 'tiff:Orientation="1']), _XMP_ORIENTATION, r"\1")
    return numbers(digit, 0, tf.uint8, 1)[0] - ord("0")


def _inflated(chunk: tf.Tensor) -> tf.Tensor:
    """Return the profile in the data of an iCCP chunk: a name, a zero, the method 0 and the deflated profile."""
    deflated = tf.strings.regex_replace(chunk, r"^\C*?\x00\C", "", replace_global=False)
    return tf.cond(
        tf.strings.length(deflated) > 0, lambda: tf.io.decode_compressed(deflated, "ZLIB"), lambda: tf.constant("")
    )
