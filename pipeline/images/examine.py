"""Examine one image: decide whether it is usable, and which bytes go into its record.

Training must never meet a foreign byte: any InvalidArgumentError in a `map` ends the epoch, and TensorFlow ignores
EXIF rotation and color profiles, and cannot decode several formats at all. A JPEG or PNG that is 8-bit RGB or gray, in
sRGB, upright and undamaged keeps its bytes. The pixels of any other image are encoded again, once.

`strict` decodes every JPEG with a decoder that rejects a file if libjpeg gives a warning (jpeg_decoder.py). `header`
does not decode a file that keeps its bytes, so training may find damage in its body. `header` is for collections that
are known to be undamaged.
"""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from PIL import ExifTags, Image, UnidentifiedImageError

from pipeline.images import appearance, coding, heif, jpeg_decoder, prepare, tiff
from pipeline.images.header import JPEG_END, Header, Tables, read_header, without_profile
from pipeline.images.pillow_internals import icc_profile, read_white_is_zero, without_pixel_limit
from pipeline.images.prepare import Crop, Form, ProfileUse
from pipeline.images.profiles import UNREADABLE
from pipeline.images.rejection import Rejection
from pipeline.images.wellformed import has_sound_pixels, is_whole_jpeg, is_whole_png
from pipeline.sources import Box
from pipeline.sources.suffixes import OTHER_SUFFIXES, READ_SUFFIXES

READABLE = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "AVIF")
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that turns an image upright, by its EXIF orientation."""
_ON_ITS_SIDE = (5, 6, 7, 8)
"""These EXIF orientations swap width and height."""
_TURNED_BY_DECODER = ("TIFF", "HEIF")
"""Pillow and libheif turn images of these formats upright while they decode them."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How images are checked and prepared. The fields of the same names in `Settings` explain them."""

    check: Literal["strict", "header"] = "strict"
    max_pixels: int = 50_000_000
    prepare: Literal["keep", "resize", "raw"] = "keep"
    prepare_size: int = 256
    """Shorter side in pixels."""
    crop_to_box: bool = False
    perceptual_hash: bool = False


class UsableImage(NamedTuple):
    """An upright 8-bit image in sRGB or gray, as JPEG, PNG or RGB pixels. `height` and `width` are in pixels."""

    encoded: bytes
    """Bytes of the record. For RAW: height x width x 3 bytes, row by row."""
    format: Form
    height: int
    width: int
    boxes: tuple[Box, ...]
    """As fractions (0 to 1) of the width and height."""
    source_format: str
    brightness: float | None
    """Mean luminance, 0 to 255; None if no pixel was decoded."""
    perceptual_hash: int | None
    """64 bits; None if the rules do not ask for it."""
    profile: ProfileUse = ""


class _View(NamedTuple):
    """The crop of the upright image that goes into the record, and its size there, as (width, height) in pixels."""

    crop: Crop
    size: tuple[int, int]
    boxes: tuple[Box, ...]
    """Boxes as fractions (0 to 1) of the crop."""


class _Unusable(Exception):
    """The image cannot be used. The arguments are the reason and the advice of its Rejection."""


def examine(encoded: bytes, rules: Rules, boxes: Sequence[Box] = (), key: str = "") -> UsableImage | Rejection:
    """Return what the record should hold of an image, or why it holds nothing.

    The content decides what a file is. The suffix of `key` only tells camera raw from TIFF, and names a format that is
    not read.

    `boxes` are in pixels of the upright image. With `crop_to_box`, the image is cropped to the first box. An image that
    is shrunk or cropped becomes a JPEG of quality 95, even if it was a PNG, because the purpose is small files.
    `max_pixels` is checked on the header, before memory is taken for the pixels.
    """
    if not encoded:
        return Rejection("the file is empty")
    try:
        header = read_header(encoded)
        if header is not None and _is_decided_by_header(header, rules):
            view = _view(header.width, header.height, rules, boxes)
            if _keeps_bytes(header, encoded, rules, view):
                return _unchanged(header, encoded, view.boxes)
        # Pillow refuses a file with a broken profile, although its pixels may be intact. The header has the profile
        # already.
        for_pillow = without_profile(encoded) if header is not None and header.profile else encoded
        with (
            warnings.catch_warnings(action="ignore"),
            without_pixel_limit(),
            _opened(for_pillow) as image,
        ):
            if rejection := tiff.why_refused(image, key):
                return rejection
            return _examine_pixels(image, header, encoded, rules, boxes)
    except _Unusable as error:
        return Rejection(*error.args)
    except UnidentifiedImageError:
        return coding.why_unreadable(encoded, key)
    except MemoryError:  # The task has too little memory, and the image may be fine.
        raise
    except Exception as error:  # noqa: BLE001 - foreign bytes make decoders raise anything; one image must not stop all
        return Rejection(f"cannot be decoded: {error}")


class Examiner:
    """`examine` with one set of rules. If an image has the tables of the last one, it takes 4 us instead of 5."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._tables: Tables | None = None

    def examine(self, encoded: bytes, boxes: Sequence[Box] = (), key: str = "") -> UsableImage | Rejection:
        """Return the result of `examine`."""
        # Fast path: in most collections, the header alone decides that an image keeps its bytes.
        if not boxes and self._rules.prepare == "keep" and encoded.endswith(JPEG_END):
            header = read_header(encoded, self._tables)
            if header and _is_decided_by_header(header, self._rules):
                self._tables = header.tables
                return UsableImage(encoded, "JPEG", header.height, header.width, (), "JPEG", None, None)
        return examine(encoded, self._rules, boxes, key)


def is_misnamed(key: str, source_format: str) -> bool:
    """Whether the suffix of a key belongs to another format than its content. A suffix of no format is right."""
    suffix, form = f".{key.rpartition('.')[2].lower()}", _name(source_format)
    return suffix in OTHER_SUFFIXES or READ_SUFFIXES.get(suffix, form) != form


def _opened(encoded: bytes) -> Image.Image:
    """Open an image by its content. Nothing but its header is read."""
    if heif.is_heif(encoded) and heif.installed_version():
        return heif.opened(encoded)
    if encoded.startswith(tiff.BIG_ENDIAN):
        read_white_is_zero()
    return Image.open(io.BytesIO(encoded), formats=READABLE)


def _name(form: str | None) -> str:
    # Phones write MPO files: a JPEG followed by another one, which every decoder ignores.
    return "JPEG" if form == "MPO" else str(form)


def _is_decided_by_header(header: Header, rules: Rules) -> bool:
    """Whether the header is sufficient, so that no pixel must be decoded."""
    return (
        rules.check == "header"
        and not rules.perceptual_hash
        and header.is_plain
        and not header.may_be_turned
        and header.height * header.width <= rules.max_pixels
    )


def _keeps_bytes(header: Header, encoded: bytes, rules: Rules, view: _View) -> bool:
    """Whether an upright image goes into the record unchanged."""
    keeps_pixels = view.size == (header.width, header.height) and rules.prepare != "raw"
    if not (keeps_pixels and header.is_plain):
        return False
    if header.format == "PNG":
        return rules.check == "header" or is_whole_png(encoded)
    # Walking through the scans would take ten times as long as the rest of the header check.
    return (rules.check == "header" and encoded.endswith(JPEG_END)) or is_whole_jpeg(encoded)


def _examine_pixels(
    image: Image.Image, header: Header | None, encoded: bytes, rules: Rules, boxes: Sequence[Box]
) -> UsableImage:
    # Nothing is decoded yet: `Image.open` has read only the header.
    if image.width * image.height > rules.max_pixels:
        size, limit = f"{image.width} x {image.height} pixels", f"{rules.max_pixels / 1e6:g} megapixels"
        raise _Unusable(f"{size} are above the limit of {limit}", "shrink it, or raise max_megapixels")
    if image.mode in ("F", "I"):
        raise _Unusable(f"pixels of 32 bits (mode {image.mode}) have no known range", "save it with 8 or 16 bits")
    checked = _strictly_decoded(image, encoded, rules)
    orientation = _orientation(image, header)
    # This comes after `_orientation`, because the size of some formats is certain only when the pixels are loaded.
    width, height = image.size if orientation not in _ON_ITS_SIDE else image.size[::-1]
    view = _view(width, height, rules, boxes)
    turn = _UPRIGHT.get(orientation)
    if turn is None and header is not None and _keeps_bytes(header, encoded, rules, view):
        gray = appearance.luminance(checked) if checked else appearance.decode(image, rules.perceptual_hash)
        return _unchanged(header, encoded, view.boxes)._replace(
            brightness=appearance.brightness(gray),
            perceptual_hash=appearance.perceptual_hash(gray) if rules.perceptual_hash else None,
        )
    # Pillow does not verify the checksums of IDAT chunks, so damage would become a valid image of wrong pixels.
    if rules.check == "strict" and image.format == "PNG" and not has_sound_pixels(encoded):
        raise _Unusable("damaged PNG: a checksum of its pixels is wrong")
    profile = header.profile if header is not None and header.profile else icc_profile(image)
    return _encode_again(
        image, encoded, profile=UNREADABLE if profile is None else profile, turn=turn, view=view, rules=rules
    )


def _strictly_decoded(image: Image.Image, encoded: bytes, rules: Rules) -> Image.Image | None:
    """Return a JPEG in gray if the strict check could decode it. Raises _Unusable if it is damaged.

    A JPEG that is converted is decoded twice, because Pillow would turn its damage into a valid image of wrong pixels.
    """
    if rules.check != "strict" or _name(image.format) != "JPEG":
        return None
    try:
        return jpeg_decoder.luminance(encoded, appearance.THUMBNAIL if rules.perceptual_hash else 1)
    except jpeg_decoder.Damaged as error:
        raise _Unusable(f"damaged JPEG: {error}") from error


def _orientation(image: Image.Image, header: Header | None) -> int:
    """Return the EXIF orientation that is still to be applied."""
    if header is not None and not header.may_be_turned:
        return 1  # Pillow takes longer to read EXIF than to decode a tiny image.
    if image.format in _TURNED_BY_DECODER:
        image.load()  # The size is certain only then.
        return 1
    orientation: int = image.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation


def _view(width: int, height: int, rules: Rules, boxes: Sequence[Box]) -> _View:
    whole = Crop(0, 0, width, height)
    for box in boxes:
        if prepare.clipped(box, whole) is None:
            corners = f"from ({box.xmin:g}, {box.ymin:g}) to ({box.xmax:g}, {box.ymax:g})"
            raise _Unusable(
                f"its box {corners} covers none of the {width} x {height} pixels",
                "give boxes in pixels of the upright image, or remove this one from the source",
            )
    crop = prepare.around(boxes[0], whole) if rules.crop_to_box and boxes else whole
    size = crop.size if rules.prepare == "keep" else prepare.shrunk(*crop.size, rules.prepare_size)
    placed = prepare.as_fractions(boxes, crop) if boxes else ()
    if crop is not whole:
        # The crop is the first box, rounded to whole pixels. As fractions, that box would be slightly smaller.
        placed = (Box(0, 0, 1, 1, boxes[0].label), *placed[1:])
    return _View(crop, size, placed)


def _unchanged(header: Header, encoded: bytes, boxes: tuple[Box, ...]) -> UsableImage:
    """Return an image that keeps its bytes, without the figures for which pixels must be decoded."""
    return UsableImage(encoded, header.format, header.height, header.width, boxes, header.format, None, None)


def _encode_again(
    image: Image.Image, encoded: bytes, *, profile: bytes, turn: Image.Transpose | None, view: _View, rules: Rules
) -> UsableImage:
    """Encode the pixels of the view."""
    is_lossless = coding.is_lossless(_name(image.format), encoded)
    has_full_chroma = is_lossless or coding.has_full_chroma(image)
    # This comes before any pixel is decoded, because `draft` has no effect afterwards.
    scale = prepare.draft(image, min(view.size) / min(view.crop.size))
    in_srgb = prepare.to_srgb(image, profile)
    upright = in_srgb.pixels if turn is None else in_srgb.pixels.transpose(turn)
    pixels = prepare.crop_and_resize(upright, view.crop, scale, view.size)
    is_lossy = not is_lossless or pixels.size != upright.size
    form: Form = "RAW" if rules.prepare == "raw" else "JPEG" if is_lossy else "PNG"
    gray = appearance.luminance(pixels)
    return UsableImage(
        encoded=prepare.encode(pixels, form, has_full_chroma and view.size == view.crop.size),
        format=form,
        height=pixels.height,
        width=pixels.width,
        boxes=view.boxes,
        source_format=_name(image.format),
        brightness=appearance.brightness(gray),
        perceptual_hash=appearance.perceptual_hash(gray) if rules.perceptual_hash else None,
        profile=in_srgb.profile_use,
    )
