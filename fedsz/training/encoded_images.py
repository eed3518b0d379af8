"""Images that are decoded when they are wanted: a device has room for files, not for pixels."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from fedsz.errors import DataError, first_line

if TYPE_CHECKING:
    from fedsz.training.datasets import DatasetSpec


class EncodedImages:
    """Images in memory as the files that they were.

    ``images[rows]`` decodes some of them, uint8 [N, C, H, W]; ``rows`` is a slice, or row numbers,
    int64 [N].

    Args:
        files: one each, in a format that Pillow knows.
        spec: the data set whose images they should be.
        where: what they were read from, for errors.
    """

    def __init__(self, files: Sequence[bytes], spec: DatasetSpec, where: Path | str) -> None:
        self._files, self._spec, self._where = files, spec, where

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, rows: torch.Tensor | slice) -> torch.Tensor:
        """Decode.

        Raises:
            DataError: an image cannot be decoded, or has another size than those of its set.
        """
        wanted = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        x = np.empty((len(wanted), *self._spec.shape), dtype=np.uint8)
        try:
            for place, row in enumerate(wanted):
                image = Image.open(BytesIO(self._files[row]))
                x[place] = self._pixels(ImageOps.exif_transpose(image))
        except OSError as err:
            what = f"{self._where} has an image that cannot be decoded"
            raise DataError(f"{what}: {first_line(err)}") from err
        return torch.from_numpy(x)

    def _pixels(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        """Return an image as [C, H, W]."""
        channels, height, width = self._spec.shape
        if image.mode != self._spec.mode:
            image = image.convert(self._spec.mode)
        if self._spec.crop:  # the short side to size, then the middle
            image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        elif image.size != (width, height):
            raise DataError(
                f"{self._where} has an image of {image.width}x{image.height} pixels; "
                f"those of {self._spec.name} have {width}x{height}"
            )
        return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)
