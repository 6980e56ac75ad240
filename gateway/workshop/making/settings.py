"""Limits of the tools for authors, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkshopSettings:
    """Limits of `edge-gateway models new`."""

    labels_limit_bytes: int = 4_194_304  # a file of labels larger than this is refused
    labels_limit: int = 100_000  # most labels of one model
    label_limit_chars: int = 256  # longest label
    zip_entries_limit: int = 1_000  # most files in the archive at the end of a TFLite file
    xml_limit_bytes: int = 268_435_456  # largest .xml of an OpenVINO model whose weights are counted


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """Limits of the data of `edge-gateway models quantize`."""

    files_limit: int = 1_000_000  # most files in a folder of data
    file_limit_bytes: int = 1_073_741_824  # largest .npz or .csv
    calibration_rows: int = 256  # most samples that ranges are taken from
    heldout_rows: int = 1_000  # most samples that accuracy is measured on
    heldout_share: float = 0.5  # share of the samples that accuracy is measured on
    samples_bytes: int = 536_870_912  # most memory of all samples; of larger ones, fewer are read
    golden_rows: int = 256  # most samples of the golden set
    golden_bytes: int = 33_554_432  # most bytes of the golden set's arrays
    annotations_bytes: int = 268_435_456  # largest COCO .json, and largest labels.csv
    annotation_files: int = 100  # most .json files, and most folders of images, that are searched for annotations
    label_file_bytes: int = 4_194_304  # largest .txt of YOLO with the objects of one image
    few_calibration_rows: int = 50  # fewer samples than this are reported: ranges may be too narrow
    few_heldout_rows: int = 100  # fewer samples than this are reported: accuracy is coarse
    work_rows: int = 8  # samples of one run while accuracy is measured
