"""Publications of methods that send the few values that matter."""

from __future__ import annotations

from fedtern.core.methods.recipe import Publication, bibtex

STC = Publication(
    "Sattler et al., 2019",
    bibtex(
        "article",
        "sattler2019robust",
        title="Robust and Communication-Efficient Federated Learning from Non-{IID} Data",
        author='Sattler, Felix and Wiedemann, Simon and M{\\"u}ller, Klaus-Robert and Samek,'
        " Wojciech",
        journal="IEEE Transactions on Neural Networks and Learning Systems",
        year="2019",
    ),
    {
        "Algorithm 1 (STC)": "fedtern.core.compressors.SparseTernary.compress",
        "Algorithm 2, residuals": "fedtern.core.feedback.ErrorFeedback.step",
        "Algorithm 2, mean": "fedtern.core.methods.aggregation.Mean.combine",
        "Algorithm 3 (Golomb encoding)": "fedtern.core.codecs.golomb.encode_positions",
        "Algorithm 4 (Golomb decoding)": "fedtern.core.codecs.golomb.decode_positions",
        "bits per position": "fedtern.core.analytic.bits_per_position",
        "P^(s), partial sums": "fedtern.core.updates.sums.merge_updates",
    },
    ("Exactly k values are kept: ties go to the lowest index, zeros are never sent.",),
)

SBC = Publication(
    "Sattler et al., 2018",
    bibtex(
        "article",
        "sattler2018sparse",
        title="Sparse Binary Compression: Towards Distributed Deep Learning with minimal"
        " Communication",
        author='Sattler, Felix and Wiedemann, Simon and M{\\"u}ller, Klaus-Robert and Samek,'
        " Wojciech",
        journal="arXiv:1805.08768",
        year="2018",
    ),
    {
        "Algorithm 2 (sparse binarization)": "fedtern.core.compressors.SparseBinary.compress",
        "Algorithm 1, residual": "fedtern.core.feedback.ErrorFeedback.step",
        "Algorithm 3 (position encoding)": "fedtern.core.codecs.golomb.encode_positions",
        "momentum masking": "fedtern.core.methods.Method",
    },
    ("Values of the other sign are never among the k largest: where there are fewer, fewer go.",),
)

GRADIENT_DROPPING = Publication(
    "Aji & Heafield, 2017",
    bibtex(
        "inproceedings",
        "aji2017sparse",
        title="Sparse Communication for Distributed Gradient Descent",
        author="Aji, Alham Fikri and Heafield, Kenneth",
        booktitle="EMNLP",
        year="2017",
    ),
    {
        "Algorithm 1 (gradient dropping)": "fedtern.core.compressors.TopK.compress",
        "Algorithm 1, residual": "fedtern.core.feedback.ErrorFeedback.step",
    },
    ("The threshold is exact, where the publication estimates it from a sample.",),
)

DGC = Publication(
    "Lin et al., 2018",
    bibtex(
        "inproceedings",
        "lin2018deep",
        title="Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed"
        " Training",
        author="Lin, Yujun and Han, Song and Mao, Huizi and Wang, Yu and Dally, William J.",
        booktitle="ICLR",
        year="2018",
    ),
    {
        "momentum correction, factor masking": "fedtern.core.feedback.MomentumCorrection.step",
        "local gradient clipping": "fedtern.core.feedback.MomentumCorrection.step",
        "warm-up": "fedtern.core.feedback.MomentumCorrection.rate",
        "top-k by tensor": "fedtern.core.compressors.TopK.compress",
    },
    (
        "The threshold is exact, where the publication estimates it from a sample.",
        "The warm-up counts a client's own uploads, for clients that take part now and then.",
        "An upload that did not count goes back into the residual; velocities start anew.",
    ),
)

STROM = Publication(
    "Strom, 2015",
    bibtex(
        "inproceedings",
        "strom2015scalable",
        title="Scalable Distributed {DNN} Training Using Commodity {GPU} Cloud Computing",
        author="Strom, Nikko",
        booktitle="INTERSPEECH",
        year="2015",
    ),
    {
        "threshold and quantisation": "fedtern.core.compressors.Threshold.compress",
        "gradient residual": "fedtern.core.feedback.ErrorFeedback.step",
    },
    ("Positions are Golomb-coded gaps, where the publication sends a 32-bit word for each.",),
)

VARIANCE = Publication(
    "Tsuzuku et al., 2018",
    bibtex(
        "inproceedings",
        "tsuzuku2018variance",
        title="Variance-based Gradient Compression for Efficient Distributed Deep Learning",
        author="Tsuzuku, Yusuke and Imachi, Hiroto and Akiba, Takuya",
        booktitle="ICLR Workshop",
        year="2018",
    ),
    {
        "Algorithm 1, criterion and decay": "fedtern.core.feedback.VarianceThreshold.step",
        "second moments of each example": "fedtern.training.flat.FlatModel.train",
        "section 4.2, 4-bit quantisation": "fedtern.core.feedback.variance_threshold.powers_of_two",
        "section 4.2, encoding": "fedtern.core.codecs.PowersCodec.encode",
    },
    (
        "Positions are Golomb-coded gaps, where the publication sends 28 bits for each.",
        "With momentum, what an example contributes is counted with all that it will move.",
    ),
)
