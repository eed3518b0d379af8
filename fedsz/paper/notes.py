"""Notes on tables and figures: where the paper contradicts itself, and how ours are made."""

from __future__ import annotations

from typing import Final

# Names of tables and figures, and a note on them. Those on the paper come first.
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
    # How ours are made.
    ("table 1", "What became of SZx's payloads, below its rows: decoded as they should be; at the"
     " one bound that gives the paper's ratio; and what a model is worth whose weights were never"
     " written. A model that answers the same to every image is right for one class in ten, 10.00"
     " % of all 10,000 test images. That this is what happened is inference."),
    ("table 1", "Accuracy: the paper's is after ten rounds in which every update was compressed;"
     " ours is that of the trained model, decoded once. `fedsz paper --figure 4` and 5 train."),
    ("table 2", '"rest" is what Algorithm 1 leaves to the lossless codec; "all" is the whole'
     " state_dict. A slow codec is given the middle of it, as its size says: its runtime is for"
     " that."),
    ("figure 2", "The paper shows weights beside slices of MIRANDA, a smooth simulation, which is"
     " not here; the correlation of neighbours says the same in a number: smooth fields have"
     " nearly 1, independent numbers 0."),
    ("figure 3", "The paper's weights all lie in [-1, 1]: the printed 1 is that limit."),
    ("figure 4", "Printed is Table I's accuracy after ten rounds, on all data; ours is after the"
     " rounds that the rows say. SZx, its bound kept, learns like the others."),
    ("figure 5", 'The paper prints no values: it finds a knee at 1e-2, and up to there "within'
     ' 0.5 %" of uncompressed, which the printed 0 stands for. On little data and few rounds,'
     " seeds make more than that: give --samples, --rounds and a sweep of several seeds."),
    ("figure 6", "A client's seconds to train and compress, the server's to decode its reply, and"
     " to test the average once. The overhead is compression's share of all four."),
    ("figure 7", "Ours: t_C + t_D + 8 S' / B against 8 S / B, one update, nothing else on the"
     " link. A ratio is the most that a link can make of it."),
    ("figure 8", "Worth it below B = 8 (S - S') / (t_C + t_D); two codecs hand over to each other"
     " where their lines in 1 / B cross. Rows \"by Table I\" are the paper's own numbers, put"
     " into the same formula with t_C alone."),
    ("figure 10", 'The paper: "similar to Laplacian". K-S is the largest difference of'
     " distribution functions, 0 for a perfect fit; the law with the least fits best."),
)  # fmt: skip


def notes_on(name: str) -> list[str]:
    """Return the notes on a table or figure, such as "table 1"."""
    return [text for names, text in NOTES if name in names.split(", ")]
