"""A strict JPEG decoder, which rejects a file if libjpeg gives a warning. The only module that uses simplejpeg.

libjpeg tolerates damage. It gives a warning and fills the rest of the image with gray, and Pillow drops the warning. So
files that lost 4 KiB, or that end in zeros, pass with wrong pixels. simplejpeg uses the same library, and raises an
error for a warning.

Some warnings do not concern the pixels, and libjpeg reports only the first warning. So the cause of such a warning is
removed from the file, and the file is decoded once more: otherwise the warning could hide damage.

Measured on 600 photographs of 60 KB, in CPU time of one core: 2,200 to 2,300 images/s. Pillow reaches 1,940 to 2,070 at
the same size, and a full decode 1,440 to 1,560. There was no false alarm. 120 photographs were damaged in four ways: a
block of 4 KiB zeroed or lost, and the file cut or zeroed up to an end marker. The decoder rejects 479 of these 480
files. The last one, and many files with flipped bits, are valid streams of other pixels, which no decoder can notice.

Alternatives: PyTurboJPEG needs a library of the system, and imagecodecs is 20 times as large.
"""

import re
from functools import partial

from PIL import Image

_WITHOUT_CAUSE = {
    "Warning: unknown JFIF revision number": partial(
        re.compile(rb"(\xff\xe0..JFIF\0).", re.DOTALL).sub, rb"\1" b"\x01"
    ),
    "Unknown Adobe color transform": partial(re.compile(rb"(\xff\xee..)Adobe", re.DOTALL).sub, rb"\1" + bytes(5)),
    "Corrupt JPEG data: bad ICC marker": partial(re.compile(rb"ICC_PROFILE\0").sub, bytes(12)),
    # Photographs of Samsung phones. The head of a scan names one to four components of two bytes each.
    "Invalid SOS parameters for sequential JPEG": partial(
        re.compile(rb"(\xff\xda\0(?:\x08\x01.{2}|\x0a\x02.{4}|\x0c\x03.{6}|\x0e\x04.{8})).{3}", re.DOTALL).sub,
        rb"\1" b"\x00\x3f\x00",
    ),
}
"""Beginnings of warnings that do not concern the pixels, each with a function that removes their cause from a file.

Texts of simplejpeg 1.9.0, and of the libjpeg-turbo in it. `tests/images/test_jpeg_decoder.py` fails if one changes.
"""
_UNSUPPORTED = ("Could not determine subsampling", "Unsupported")
"""Parts of the errors of simplejpeg 1.9.0 for files that it cannot decode. Pillow may be able to decode them."""


class Damaged(Exception):
    """The message of libjpeg for a damaged file."""


def luminance(encoded: bytes, side: int) -> Image.Image | None:
    """Decode a JPEG in gray at an eighth of its size, or larger if the shorter side needs it to have `side` pixels.

    libjpeg reads the entropy code of the whole file at any size, so this finds the same damage as a full decode in half
    of the time. Returns None if simplejpeg does not support the file, or if only its metadata is wrong. Raises Damaged.
    """
    import simplejpeg  # The import takes 60 ms with NumPy. A task that decodes nothing saves it.

    try:
        gray = simplejpeg.decode_jpeg(encoded, "GRAY", min_height=side, min_width=side)
    except ValueError as error:
        message = str(error)
        if any(part in message for part in _UNSUPPORTED):
            return None
        remove_cause = next((remove for begin, remove in _WITHOUT_CAUSE.items() if message.startswith(begin)), None)
        repaired = remove_cause(encoded) if remove_cause else encoded
        if repaired == encoded:
            raise Damaged(message.removeprefix("Corrupt JPEG data: ")) from error
        luminance(repaired, side)
        return None  # The gray of the original file may differ.
    height, width, _ = gray.shape
    return Image.frombytes("L", (width, height), gray.tobytes())
