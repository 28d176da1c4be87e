"""Images as a kind of examples."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.dataset.manifest import Dataset, images_at
from pipeline.images.codecs import codec_versions
from pipeline.images.examine import Rules
from pipeline.plan.examples import Examples
from pipeline.plan.kinds import ExampleKind
from pipeline.plan.ranges import RangePlan
from pipeline.records.format import RecordFormat
from pipeline.storage import Place

if TYPE_CHECKING:
    from pipeline.config import Settings


class Kind(ExampleKind):
    """Images. Their records describe themselves."""

    noun = "image"
    has_files = True

    def examples(self, range_plan: RangePlan) -> Examples:
        """Return the images of a plan file."""
        from pipeline.kinds.images.examples import ExamplesOfKind  # Imports the decoders. Only a writer needs them.

        return ExamplesOfKind(range_plan)

    def codecs(self, *, gzip: bool, perceptual_hash: bool) -> dict[str, str]:
        """Return the versions of the decoders and encoders of images."""
        return codec_versions(gzip=gzip, perceptual_hash=perceptual_hash)

    def features(self, records: RecordFormat, facts: Mapping[str, Any]) -> dict[str, str]:
        """Return the features of the format."""
        return records.features()

    def key_at(self, folder: Place, dataset: Dataset, split: str, position: int) -> str:
        """Return the key of an image."""
        [(key, _)] = images_at(folder, dataset, split, [position])
        return key

    def rules(self, settings: "Settings") -> Rules:
        """Return what the settings say."""
        return Rules(
            check=settings.check,
            max_pixels=int(settings.max_megapixels * 1e6),
            prepare=settings.prepare,
            prepare_size=settings.prepare_size,
            crop_to_box=settings.crop_to_box,
            perceptual_hash=settings.near_duplicates,
        )
