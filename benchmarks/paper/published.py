"""What the FedSZ paper prints, number by number.

Wilkins et al., "FedSZ: Leveraging Error-Bounded Lossy Compression for Federated Learning
Communications", arXiv:2312.13461. Numbers are as printed, misprints too: notes.toml has them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MODELS: Final = ("alexnet", "mobilenetv2", "resnet50")
DATASETS: Final = ("cifar10", "fashion_mnist", "caltech101")
CODECS: Final = ("sz2", "sz3", "szx", "zfp")
BOUNDS: Final = (1e-2, 1e-3, 1e-4)  # of Table I
RECOMMENDED_BOUND: Final = 1e-2
ROUNDS: Final = 10  # that accuracies of Table I are after
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


# Codecs on three models trained on CIFAR-10: runtime, speed, ratio, accuracy, at each of `BOUNDS`.
_TABLE_1: Final = """
alexnet     sz2  3.22 70.75 11.26 57.90  4.93 46.26 5.228 57.39  6.64 34.34 3.375 57.06
alexnet     sz3  7.22 31.58 9.827 57.28  8.80 25.94 5.169 57.18  10.69 21.34 3.345 58.50
alexnet     szx  0.444 3514.92 4.804 10.00  0.439 3554.84 4.801 10.00  9.445 3507.02 4.802 10.00
alexnet     zfp  1.89 120.66 4.166 57.30  2.11 108.17 2.942 56.80  2.36 96.51 2.210 57.19
mobilenetv2 sz2  0.365 25.61 5.409 55.19  0.482 19.38 3.235 55.19  0.692 13.51 1.923 55.19
mobilenetv2 sz3  0.574 16.30 5.250 54.94  0.724 12.92 3.125 56.14  1.082 8.64 1.779 53.86
mobilenetv2 szx  0.034 104.089 4.799 10.00  0.031 114.162 4.765 10.00  0.029 122.036 4.783 10.00
mobilenetv2 zfp  0.127 73.73 3.027 54.60  0.138 67.57 2.333 57.26  0.151 61.70 1.897 54.90
resnet50    sz2  1.235 76.80 7.025 58.66  1.930 49.14 4.041 59.15  2.870 33.05 2.737 58.66
resnet50    sz3  2.723 34.82 6.768 64.14  3.459 27.42 3.942 61.35  4.586 20.68 2.662 63.51
resnet50    szx  0.186 3516.02 4.806 10.00  0.186 3516.02 4.806 10.00  0.185 3535.27 4.806 10.00
resnet50    zfp  0.747 126.95 3.449 62.07  0.843 112.53 2.562 64.70  0.962 98.58 2.035 64.06
"""
TABLE_1: Final = {
    (model, codec, bound): CodecCosts(*map(float, cells[4 * i : 4 * i + 4]))
    for model, codec, *cells in map(str.split, _TABLE_1.strip().splitlines())
    for i, bound in enumerate(BOUNDS)
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
