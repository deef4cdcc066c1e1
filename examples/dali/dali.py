"""Your own data over NVIDIA DALI: JPEGs decoded, cropped, flipped and normalised by its threads or
on the GPU, read from ROOT/CLASS/*.jpg.

    pip install nvidia-dali-cuda120
    cd examples/dali
    paceline --config-dir conf data=dali data.root=/your/images model=resnet model.in_channels=3

DALI does its own sampling: paceline can't know which samples a step used, so `samples_digest` is
null and a checkpoint is not resumed. The test runs this where DALI is installed and is skipped
elsewhere. It has run with DALI 2.4 on a CPU, on one and two ranks; decode=mixed not yet.

Nothing here imports paceline: the class is found by the `_target_` of the YAML beside it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

IMAGES = {".jpg", ".jpeg", ".png"}


@dataclass(frozen=True)
class Dali:
    """`decode`: cpu; mixed (the GPU finishes what the CPU begins); auto: mixed where training is
    on a GPU. `mean` and `std`: three each, of pixel values from 0 to 255."""

    global_batch_size: int
    root: str
    image_size: int
    decode: Literal["auto", "cpu", "mixed"]
    num_threads: int
    prefetch_queue_depth: int
    mean: list[float]
    std: list[float]

    # looked for before any process starts; a module and what to give pip
    requires: ClassVar[dict[str, str]] = {"nvidia.dali": "nvidia-dali-cuda120"}

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "image_size", "num_threads", "prefetch_queue_depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give 1 or more")
        for name in ("mean", "std"):
            if len(getattr(self, name)) != 3:
                raise ValueError(f"{name}={getattr(self, name)}: give three, one a colour")

    def open(self, context: Any) -> "OpenDali":
        return OpenDali(self, context.world, context.run)


class OpenDali:
    """Endless batches: images [B, 3, S, S] float32, labels [B] int64; one may straddle epochs."""

    unit = "images"
    sampling = "own"

    def __init__(self, settings: Dali, world: Any, run: Any) -> None:
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        on_gpu = world.device.type == "cuda"
        if settings.decode == "mixed" and not on_gpu:
            raise ValueError("data.decode=mixed: training is on the CPU; use data.decode=auto")
        self.global_batch_size = settings.global_batch_size
        self.micro_batch_size = settings.global_batch_size // (
            world.world_size * run.accumulation_steps
        )
        self.queued_batches = settings.prefetch_queue_depth
        files, labels = find_images(Path(settings.root), run.seed)
        pipeline = training_pipeline(
            settings,
            "mixed" if on_gpu and settings.decode != "cpu" else "cpu",
            files,
            labels,
            shard_id=world.rank,
            num_shards=world.world_size,
            batch_size=self.micro_batch_size,
            num_threads=settings.num_threads,
            prefetch_queue_depth=settings.prefetch_queue_depth,
            device_id=world.device.index if on_gpu else None,
            seed=run.seed + world.rank,
        )
        # size=-1: no end; nothing is decoded twice or thrown away where an epoch ends
        self.iterator = DALIGenericIterator([pipeline], ["images", "labels"], size=-1)

    def count(self, batch: Any) -> int:
        return len(batch[0])

    def batches(self, first_step: int) -> Iterator[Any]:
        for (found,) in self.iterator:
            yield found["images"], found["labels"].squeeze(-1).long()

    def held_out(self, batches: int) -> Iterator[Any]:
        return iter(())

    def num_batches(self) -> int | None:
        return None

    def digest(self, micro_batches: int) -> int | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise RuntimeError("DALI's reader can't go on where it stopped; use checkpoint.resume=off")


def training_pipeline(
    settings: Dali,
    decode: str,
    files: list[str],
    labels: list[int],
    shard_id: int,
    num_shards: int,
    **options: Any,
) -> Any:
    """DALI's graph: read, decode, random resized crop, flip, normalise."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(**options)
    def graph() -> Any:
        encoded, label = fn.readers.file(
            files=files,
            labels=labels,
            random_shuffle=True,
            initial_fill=4 * options["batch_size"],
            shard_id=shard_id,
            num_shards=num_shards,
            name="files",
        )
        images = fn.decoders.image(encoded, device=decode, output_type=types.RGB)
        images = fn.random_resized_crop(images, size=settings.image_size)
        images = fn.crop_mirror_normalize(
            images,
            mirror=fn.random.coin_flip(),
            mean=settings.mean,
            std=settings.std,
            dtype=types.FLOAT,
            output_layout="CHW",
        )
        return images, label

    return graph()


def find_images(root: Path, seed: int) -> tuple[list[str], list[int]]:
    """Files and the numbers of their class folders, in one random order that all ranks share."""
    classes = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    found = [
        (str(path), label)
        for label, folder in enumerate(classes)
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in IMAGES
    ]
    if not found:
        raise ValueError(
            f"data.root={root.absolute()}: there is no image in a folder of a class there; give "
            "the folder that holds ROOT/CLASS/*.jpg"
        )
    random.Random(seed).shuffle(found)  # DALI itself shuffles within a few batches only
    return [path for path, _ in found], [label for _, label in found]
