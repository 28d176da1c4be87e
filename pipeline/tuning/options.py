"""The options of a comparison of inputs. They belong to one command and one form, and are no settings of a run."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipeline.config.settings import Text
from pipeline.tuning.contenders import CONTENDERS


class ComparisonOptions(BaseModel):
    """What a comparison measures, and how often. Immutable; `validated` makes it and explains what is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    contenders: Text = Field(
        ",".join(CONTENDERS),
        title="Contenders",
        examples=["files,shards,resized"],
        description="Inputs to compare, separated by commas: files (raw files, one after another), files_parallel (raw "
        "files in parallel), shards (images as they are), resized (prepared JPEG), pixels (prepared pixels) "
        "and cached (shards, decoded images kept in memory).",
    )

    rounds: int = Field(
        3,
        title="Rounds",
        ge=2,
        le=50,
        description="How many times each contender is measured, in alternating order. More rounds make the intervals "
        "narrower.",
    )

    accelerator: Literal["own", "h100", "a100", "b200_retinanet", "h100_vit_small", "h100_vit_small_training"] = Field(
        "own",
        title="Accelerator",
        description="own trains on the devices of this machine. The others simulate one GPU, whose steps only wait. "
        "h100 and a100 take the steps of ResNet-50 in MLPerf Storage (1,786 and 920 images per second). b200_retinanet "
        "takes those of RetinaNet in MLPerf Storage 3.0 (505). h100_vit_small takes those of ViT-Small without input "
        "(7,711), and h100_vit_small_training those of each GPU in a training of it on eight GPUs (3,241).",
    )

    measure_seconds: float = Field(
        2.0,
        title="Measuring time without a model (seconds)",
        ge=0.1,
        le=600,
        allow_inf_nan=False,
        json_schema_extra={"section": "Input comparison"},
        description="How long each input is read from memory without a model, at least. Longer times give more exact "
        "rates.",
    )

    @field_validator("contenders")
    @classmethod
    def _check_contenders(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        if unknown := [name for name in names if name not in CONTENDERS]:
            raise ValueError(f"must list {', '.join(CONTENDERS)}, separated by commas: {unknown[0]!r} is none of them")
        if len(set(names)) < max(2, len(names)):
            raise ValueError("must list at least two contenders, each once")
        # In one order: the first one is the base of all ratios, and of two equal ones the cheaper comes first.
        return ",".join(sorted(names, key=list(CONTENDERS).index))

    @property
    def names(self) -> list[str]:
        """The names of the contenders, in their order."""
        return self.contenders.split(",")
