"""What the FedSZ paper prints, number by number, and where it contradicts itself.

Wilkins et al., "FedSZ: Leveraging Error-Bounded Lossy Compression for Federated Learning
Communications", arXiv:2312.13461. Numbers are as printed, misprints too; `NOTES` has them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MODELS: Final = ("alexnet", "mobilenetv2", "resnet50")
DATASETS: Final = ("cifar10", "fashion_mnist", "caltech101")
CODECS: Final = ("sz2", "sz3", "szx", "zfp")
BOUNDS: Final = (1e-2, 1e-3, 1e-4)  # of Table I
RECOMMENDED_BOUND: Final = 1e-2
BANDWIDTH: Final = 10e6  # bit/s, of Figures 7 and 9


class CodecCosts(NamedTuple):
    """A row of Table I at one bound, or of Table II.

    Attributes:
        runtime: seconds to compress; decompression is left out, since runtime x MB/s is the model.
        speed: MB/s.
        ratio: of the lossy part.
        accuracy: top-1 after 10 rounds of 1 epoch on CIFAR-10, in %; None in Table II.
    """

    runtime: float
    speed: float
    ratio: float
    accuracy: float | None = None


# Codecs on three models trained on CIFAR-10.
TABLE_1: Final = {
    ("alexnet", "sz2", 1e-2): CodecCosts(3.22, 70.75, 11.26, 57.90),
    ("alexnet", "sz2", 1e-3): CodecCosts(4.93, 46.26, 5.228, 57.39),
    ("alexnet", "sz2", 1e-4): CodecCosts(6.64, 34.34, 3.375, 57.06),
    ("alexnet", "sz3", 1e-2): CodecCosts(7.22, 31.58, 9.827, 57.28),
    ("alexnet", "sz3", 1e-3): CodecCosts(8.80, 25.94, 5.169, 57.18),
    ("alexnet", "sz3", 1e-4): CodecCosts(10.69, 21.34, 3.345, 58.50),
    ("alexnet", "szx", 1e-2): CodecCosts(0.444, 3514.92, 4.804, 10.00),
    ("alexnet", "szx", 1e-3): CodecCosts(0.439, 3554.84, 4.801, 10.00),
    ("alexnet", "szx", 1e-4): CodecCosts(9.445, 3507.02, 4.802, 10.00),
    ("alexnet", "zfp", 1e-2): CodecCosts(1.89, 120.66, 4.166, 57.30),
    ("alexnet", "zfp", 1e-3): CodecCosts(2.11, 108.17, 2.942, 56.80),
    ("alexnet", "zfp", 1e-4): CodecCosts(2.36, 96.51, 2.210, 57.19),
    ("mobilenetv2", "sz2", 1e-2): CodecCosts(0.365, 25.61, 5.409, 55.19),
    ("mobilenetv2", "sz2", 1e-3): CodecCosts(0.482, 19.38, 3.235, 55.19),
    ("mobilenetv2", "sz2", 1e-4): CodecCosts(0.692, 13.51, 1.923, 55.19),
    ("mobilenetv2", "sz3", 1e-2): CodecCosts(0.574, 16.30, 5.250, 54.94),
    ("mobilenetv2", "sz3", 1e-3): CodecCosts(0.724, 12.92, 3.125, 56.14),
    ("mobilenetv2", "sz3", 1e-4): CodecCosts(1.082, 8.64, 1.779, 53.86),
    ("mobilenetv2", "szx", 1e-2): CodecCosts(0.034, 104.089, 4.799, 10.00),
    ("mobilenetv2", "szx", 1e-3): CodecCosts(0.031, 114.162, 4.765, 10.00),
    ("mobilenetv2", "szx", 1e-4): CodecCosts(0.029, 122.036, 4.783, 10.00),
    ("mobilenetv2", "zfp", 1e-2): CodecCosts(0.127, 73.73, 3.027, 54.60),
    ("mobilenetv2", "zfp", 1e-3): CodecCosts(0.138, 67.57, 2.333, 57.26),
    ("mobilenetv2", "zfp", 1e-4): CodecCosts(0.151, 61.70, 1.897, 54.90),
    ("resnet50", "sz2", 1e-2): CodecCosts(1.235, 76.80, 7.025, 58.66),
    ("resnet50", "sz2", 1e-3): CodecCosts(1.930, 49.14, 4.041, 59.15),
    ("resnet50", "sz2", 1e-4): CodecCosts(2.870, 33.05, 2.737, 58.66),
    ("resnet50", "sz3", 1e-2): CodecCosts(2.723, 34.82, 6.768, 64.14),
    ("resnet50", "sz3", 1e-3): CodecCosts(3.459, 27.42, 3.942, 61.35),
    ("resnet50", "sz3", 1e-4): CodecCosts(4.586, 20.68, 2.662, 63.51),
    ("resnet50", "szx", 1e-2): CodecCosts(0.186, 3516.02, 4.806, 10.00),
    ("resnet50", "szx", 1e-3): CodecCosts(0.186, 3516.02, 4.806, 10.00),
    ("resnet50", "szx", 1e-4): CodecCosts(0.185, 3535.27, 4.806, 10.00),
    ("resnet50", "zfp", 1e-2): CodecCosts(0.747, 126.95, 3.449, 62.07),
    ("resnet50", "zfp", 1e-3): CodecCosts(0.843, 112.53, 2.562, 64.70),
    ("resnet50", "zfp", 1e-4): CodecCosts(0.962, 98.58, 2.035, 64.06),
}

# Lossless codecs on what it calls the metadata of AlexNet.
TABLE_2: Final = {
    "blosclz": CodecCosts(0.271, 674.5, 1.248),
    "gzip": CodecCosts(7.728, 28.16, 1.160),
    "xz": CodecCosts(74.52, 4.00, 1.250),
    "zlib": CodecCosts(7.772, 28.37, 1.164),
    "zstd": CodecCosts(0.529, 348.6, 1.169),
}


class ModelSize(NamedTuple):
    """A row of Table III: millions of parameters, MB, lossy data in %, 10^9 flops."""

    parameters: float
    megabytes: float
    lossy: float
    gigaflops: float


TABLE_3: Final = {
    "mobilenetv2": ModelSize(3.5, 14.0, 96.94, 0.35),
    "resnet50": ModelSize(45.0, 180.0, 99.47, 8.0),
    "alexnet": ModelSize(60.0, 230.0, 99.98, 0.75),
}

# FedSZ's ratios. The table's body is lost; this is the one cell that the text names.
TABLE_5: Final = {("alexnet", "cifar10", 1e-2): 12.61}
TABLE_5_RANGE: Final = (5.55, 12.61)  # of all cells at 1e-2

# Figure 6: compression in % of an epoch, the worst and the mean, and in seconds.
OVERHEAD: Final = {("alexnet", "cifar10"): 17.0}
MEAN_OVERHEAD: Final = 4.7
OVERHEAD_SECONDS: Final = {("alexnet", "cifar10"): 3.66}

# Figure 7, at 10 Mbps.
SPEEDUP: Final = {"alexnet": 13.26, "mobilenetv2": 12.23, "resnet50": 9.74}
SAVED_SECONDS: Final = {"alexnet": 109.87}

# Figure 8, in Mbps.
WORTH_BELOW: Final = 500.0
SZ2_BEST_BELOW: Final = 100.0

# Figure 9, by cores; 8 is the peak of weak scaling.
WEAK_SPEEDUP: Final = {8: 1.64, 128: 0.36}
STRONG_SPEEDUP: Final = {128: 7.51}
STRONG_CLIENTS: Final = 127

ERROR_LAW: Final = "laplace"  # Figure 10: "similar to Laplacian"

# Tables and figures, and what is to be known about them.
NOTES: Final[tuple[tuple[str, str], ...]] = (
    ("table 1", "SZx's throughput cannot be: runtime x MB/s gives 1561 MB for AlexNet, 654 MB for"
     " ResNet50 and 3.5 MB for MobileNetV2, where all other rows give 228, 94.8 and 9.35 MB. By"
     " its runtimes it is about 514, 510 and 275 MB/s."),
    ("table 1", "SZx's runtime of 9.445 s (AlexNet, 1e-4) is a misprint of 0.445: 0.445 x 3507.02"
     " is the 1561 MB of its neighbours."),
    ("table 1, figure 4", "SZx's 10.00 % in all nine cells is chance, at a ratio of 4.77 to 4.81"
     " whatever the bound and the model: the bound was not in force. A codec that keeps 1e-4"
     " cannot do worse than SZ2 at 1e-2."),
    ("table 1", "There is no uncompressed row, and ResNet50's SZ2 (58.66 %) lies 3.4 to 5.5"
     " points below SZ3 and ZFP: the 0.5 % that is claimed is less than what seeds make, which"
     " are not stated."),
    ("table 1", "MobileNetV2 with SZ2 has 55.19 % at three bounds, equal to the last digit."),
    ("table 1", "ZFP ran in fixed-precision mode, whose precisions are not given and which bounds"
     " no error; ours keeps the bound (fixed accuracy)."),
    ("table 1, table 2, figure 6, figure 8", "Seconds and MB/s are those of a Raspberry Pi 5 with"
     " 8 GB there and of the machine named above here: compare their order, not their size."),
    ("table 2", "Runtime x MB/s is 183, 218, 298, 220 and 184 MB, which differ among each other,"
     " while AlexNet's non-weight data are 37 kB. 217.6 (gzip) is AlexNet's 228.18 MB in MiB:"
     " that row at least is of the whole model, and so no evidence for a codec of the rest."),
    ("table 2, table 3", 'Non-weight data are "about 1 %" in the text, and 0.02 to 3.06 % by'
     " Table III."),
    ("table 3", "ResNet50's 4.5e7 parameters and 180 MB are those of ResNet101 (44.5e6, 178.6"
     " MB). Its 8 G fit both: ResNet101's multiply-adds (7.8 G), or ResNet50's flops at 224"
     " pixels. Table I implies 94.8 MB, which is ResNet50 with 10 classes."),
    ("table 3", "MobileNetV2's 3.5e6 parameters and 14 MB are of 1000 classes, its 96.94 % of 10,"
     " as is the 9.35 MB that Table I implies. AlexNet's 6.0e7 x 4 bytes are 240 MB, not 230;"
     " 228.2 MB is AlexNet with 10 classes."),
    ("table 5", "The table's body is lost. Its range at 1e-2 survives, 5.55 to 12.61, and so does"
     " AlexNet's 12.61 on CIFAR-10, which is above the 11.26 of Table I for the same model, data,"
     " codec and bound."),
    ("figure 5", '"Within 0.5 %" in the abstract is "within 1 %" in Section VIII, and up to 5'
     " points lie between the codecs of Table I."),
    ("figure 6", 'The overhead is "below 4.7 %" in the abstract, and 4.7 % in the mean and up to'
     " 17 % in Section VII."),
    ("figure 7", "MobileNetV2's \"12.23 %\" and ResNet50's \"9.74 %\" must be factors. But a link"
     " makes no more of a ratio than it is: 12.23 needs a ratio of as much, and Table I has 5.41;"
     " 13.26 exceeds AlexNet's own 12.61."),
    ("figure 7", "If 109.87 s are what 13.26x saves, an uncompressed update took 118.8 s, which"
     " is 148.5 MB at 10 Mbps. AlexNet's 228 MB take 182.5 s."),
    ("figure 8", "500 Mbps leaves decompression out: Table I's SZ2 gives 516 Mbps for compression"
     " alone and half of it if decompression takes as long. By the same numbers ZFP pays up to"
     " 733 Mbps."),
    ("figure 9", "Weak scaling is called effective at a speedup of 0.36 on 128 cores, whose"
     " baseline is not given; 7.51 on 128 cores is a strong efficiency of 5.9 %."),
    ("figure 10", "An error that looks Laplacian is no differential privacy: it is bounded, and"
     " the same for the same weights. Where most weights fall into the zero cell, the error is"
     " the weight itself, with its law; where the step is small, it is uniform."),
    ("figure 2, figure 3", "Neither says which layers or slices it shows, nor the counts."),
)  # fmt: skip


def notes(name: str) -> list[str]:
    """Return what is to be known about a table or figure, such as "table 1"."""
    return [text for about, text in NOTES if name in about.split(", ")]
