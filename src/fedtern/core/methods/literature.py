"""Publications of the methods: citations, implemented equations, and deviations."""

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

STC_PLUS = Publication(
    STC.cite,
    STC.bibtex,
    {
        **STC.equations,
        "magnitudes that are powers of two": "fedtern.core.compressors.SparseSteps.compress",
        "adaptive positions": "fedtern.core.codecs.adaptive.AdaptiveCodec.encode",
    },
    (
        *STC.notes,
        "Unlike the paper: broadcasts have fewer values than uploads, in proportion to the clients"
        " of a round; their magnitude is a power of two; positions are coded adaptively.",
    ),
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
    ("Only values of the stronger sign are sent, even if there are fewer than k of them.",),
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
    ("The threshold is exact; the publication estimates it from a sample.",),
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
        "The threshold is exact; the publication estimates it from a sample.",
        "The warm-up counts the uploads of each client, because clients do not join every round.",
        "An upload that did not count is added to the residual; its velocity stays reset.",
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
    ("Positions are Golomb-coded gaps; the publication sends a 32-bit word for each.",),
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
        "Positions are Golomb-coded gaps; the publication sends 28 bits for each.",
        "With momentum, the contribution of an example includes its effect on later steps.",
    ),
)

SGD = Publication(
    "Chen et al., 2016",
    bibtex(
        "article",
        "chen2016revisiting",
        title="Revisiting Distributed Synchronous {SGD}",
        author="Chen, Jianmin and Pan, Xinghao and Monga, Rajat and Bengio, Samy and Jozefowicz,"
        " Rafal",
        journal="arXiv:1604.00981",
        year="2016",
    ),
    {"synchronous update": "fedtern.core.methods.aggregation.Mean.combine"},
)

FEDAVG = Publication(
    "McMahan et al., 2017",
    bibtex(
        "inproceedings",
        "mcmahan2017communication",
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        author="McMahan, H. Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and"
        ' Ag{\\"u}era y Arcas, Blaise',
        booktitle="AISTATS",
        year="2017",
    ),
    {
        "Algorithm 1, ClientUpdate": "fedtern.training.flat.FlatModel.train",
        "Algorithm 1, weighted average": "fedtern.core.methods.aggregation.Mean.combine",
        "FedAvgM, DiLoCo": "fedtern.core.methods.server_optimizers.ServerMomentum.step",
        "FedAdam, FedYogi": "fedtern.core.methods.server_optimizers.ServerAdam.step",
    },
    (
        "Clients have equal weight unless weighted=true, as in Sattler et al. (2019).",
        "server_optimizer: momentum by Hsu et al., arXiv:1909.06335; Adam and Yogi by Reddi et al.,"
        " arXiv:2003.00295, Algorithm 2; Nesterov as the outer optimiser of Douillard et al.,"
        " arXiv:2311.08105.",
    ),
)

SIGNSGD = Publication(
    "Bernstein et al., 2018",
    bibtex(
        "inproceedings",
        "bernstein2018signsgd",
        title="sign{SGD}: Compressed Optimisation for Non-Convex Problems",
        author="Bernstein, Jeremy and Wang, Yu-Xiang and Azizzadenesheli, Kamyar and Anandkumar,"
        " Animashree",
        booktitle="ICML",
        year="2018",
    ),
    {
        "Algorithm 1, sign": "fedtern.core.compressors.Sign.compress",
        "majority vote": "fedtern.core.methods.aggregation.MajorityVote.combine",
    },
    ("A zero, such as a tied vote, gets a random sign, because one bit cannot express it.",),
)

EF_SIGNSGD = Publication(
    "Karimireddy et al., 2019",
    bibtex(
        "inproceedings",
        "karimireddy2019error",
        title="Error Feedback Fixes {SignSGD} and other Gradient Compression Schemes",
        author="Karimireddy, Sai Praneeth and Rebjock, Quentin and Stich, Sebastian U. and Jaggi,"
        " Martin",
        booktitle="ICML",
        year="2019",
    ),
    {
        "Algorithm 1, scaled sign": "fedtern.core.compressors.ScaledSign.compress",
        "Algorithm 2, error feedback": "fedtern.core.feedback.ErrorFeedback.step",
    },
    ("both_ways=true also compresses the mean, as Zheng et al. (2019) do.",),
)

TERNGRAD = Publication(
    "Wen et al., 2017",
    bibtex(
        "inproceedings",
        "wen2017terngrad",
        title="{TernGrad}: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
        author="Wen, Wei and Xu, Cong and Yan, Feng and Wu, Chunpeng and Wang, Yandan and Chen,"
        " Yiran and Li, Hai",
        booktitle="NeurIPS",
        year="2017",
    ),
    {
        "Eqs. 1-3 (ternarise)": "fedtern.core.compressors.StochasticTernary.compress",
        "layer-wise scaling": "fedtern.core.compressors.StochasticTernary.compress",
        "Eq. 7 (gradient clipping)": "fedtern.core.compressors.StochasticTernary.compress",
    },
    ("Clients do not share scales, which would take a second exchange in each round.",),
)

QSGD = Publication(
    "Alistarh et al., 2017",
    bibtex(
        "inproceedings",
        "alistarh2017qsgd",
        title="{QSGD}: Communication-Efficient {SGD} via Gradient Quantization and Encoding",
        author="Alistarh, Dan and Grubic, Demjan and Li, Jerry and Tomioka, Ryota and Vojnovic,"
        " Milan",
        booktitle="NeurIPS",
        year="2017",
    ),
    {
        "section 3.1 (quantiser), bucketing": "fedtern.core.compressors.StochasticLevels.compress",
        "Elias coding, sparse and dense": "fedtern.core.codecs.EliasCodec.encode",
        "Theorem 3.2 (expected bits)": "fedtern.core.analytic.analytic_bits",
    },
    ("Buckets are cut from the flat vector, not from each tensor.",),
)

ATOMO = Publication(
    "Wang et al., 2018",
    bibtex(
        "inproceedings",
        "wang2018atomo",
        title="{ATOMO}: Communication-efficient Learning via Atomic Sparsification",
        author="Wang, Hongyi and Sievert, Scott and Liu, Shengchao and Charles, Zachary and"
        " Papailiopoulos, Dimitris and Wright, Stephen",
        booktitle="NeurIPS",
        year="2018",
    ),
    {
        "Algorithm 1 (probabilities)": "fedtern.core.compressors.lowrank.atom_probabilities",
        "spectral-ATOMO": "fedtern.core.compressors.SpectralAtoms.compress",
    },
    ("Tensors that are not larger than their factors, such as biases, are sent whole.",),
)

POWERSGD = Publication(
    "Vogels et al., 2019",
    bibtex(
        "inproceedings",
        "vogels2019powersgd",
        title="{PowerSGD}: Practical Low-Rank Gradient Compression for Distributed Optimization",
        author="Vogels, Thijs and Karimireddy, Sai Praneeth and Jaggi, Martin",
        booktitle="NeurIPS",
        year="2019",
    ),
    {
        "Algorithm 1 (rank-r compression)": "fedtern.core.feedback.PowerIteration.step",
        "Algorithm 2, error feedback": "fedtern.core.feedback.PowerIteration.step",
    },
    (
        "Each side iterates on its own; the publication's all-reduce during compression would take"
        " a second exchange in each round. The mean is compressed in the same way.",
        "Momentum is applied in the clients' training, not after aggregation.",
    ),
)

KONECNY = Publication(
    "Konečný et al., 2016",
    bibtex(
        "article",
        "konecny2016federated",
        title="Federated Learning: Strategies for Improving Communication Efficiency",
        author="Kone{\\v{c}}n{\\'y}, Jakub and McMahan, H. Brendan and Yu, Felix X. and"
        " Richt{\\'a}rik, Peter and Suresh, Ananda Theertha and Bacon, Dave",
        journal="arXiv:1610.05492",
        year="2016",
    ),
    {
        "structured update, random mask": "fedtern.core.compressors.RandomMask.restrict",
        "structured update, low rank": "fedtern.core.compressors.RandomSubspace.restrict",
        "sketched update, subsampling": "fedtern.core.compressors.Sketch.compress",
        "probabilistic quantization": "fedtern.core.compressors.Sketch.compress",
        "structured random rotations": "fedtern.core.kernels.reference.rotate",
    },
    (
        "The entries of the random factor have equal magnitude and random signs.",
        "Masks and sketches are of the flat model, including biases, not of each matrix.",
    ),
)

EDEN = Publication(
    "Vargaftik et al., 2022",
    bibtex(
        "inproceedings",
        "vargaftik2022eden",
        title="{EDEN}: Communication-Efficient and Robust Distributed Mean Estimation for Federated"
        " Learning",
        author="Vargaftik, Shay and Ben Basat, Ran and Portnoy, Amit and Mendelson, Gal and"
        " Ben-Itzhak, Yaniv and Mitzenmacher, Michael",
        booktitle="ICML",
        year="2022",
        note="arXiv:2108.08842; with one bit: {DRIVE}, NeurIPS 2021, arXiv:2105.08339",
    ),
    {
        "random rotation": "fedtern.core.kernels.reference.rotate",
        "quantisation to centroids": "fedtern.core.compressors.RotatedCentroids.compress",
        "unbiased scale": "fedtern.core.compressors.RotatedCentroids.compress",
        "reconstruction": "fedtern.core.updates.Rotated.to_dense",
    },
    (
        "Blocks of at most 65,536 values are rotated separately, each with a scale of its own; the"
        " publication rotates the whole vector, padded to a power of two.",
        "Bits per value are whole numbers from 1 to 4; the publication also has fractions.",
        "The publication compresses uploads only; both_ways=true also compresses the mean.",
    ),
)

SPARSELOCO = Publication(
    "Sarfi et al., 2025",
    bibtex(
        "article",
        "sarfi2025communication",
        title="Communication Efficient {LLM} Pre-training with {SparseLoCo}",
        author="Sarfi, Amir and Th{\\'e}rien, Benjamin and Lidin, Joel and Belilovsky, Eugene",
        journal="arXiv:2508.15706",
        year="2025",
    ),
    {
        "error feedback with decay": "fedtern.core.feedback.DecayingFeedback.step",
        "top-k in chunks, 2-bit values": "fedtern.core.compressors.SparsePalette.compress",
        "mean of pseudo-gradients": "fedtern.core.methods.aggregation.Mean.combine",
        "outer learning rate": "fedtern.core.methods.server_optimizers.ServerMomentum.step",
    },
    (
        "A chunk has 4,096 consecutive values of a tensor, not a square of it.",
        "Values are rounded to the mean of their group: by sign, and below or above the mean"
        " magnitude of the tensor.",
        "The decay of the residual replaces the outer momentum, as in the publication;"
        " server_optimizer adds one on the server.",
        "Clients train with the task's optimiser; the publication uses AdamW.",
        "Replicas of the publication exchange uploads with each other; here the server sends their"
        " mean.",
    ),
)

DEMO = Publication(
    "Peng et al., 2024",
    bibtex(
        "article",
        "peng2024demo",
        title="{DeMo}: Decoupled Momentum Optimization",
        author="Peng, Bowen and Quesnelle, Jeffrey and Kingma, Diederik P.",
        journal="arXiv:2411.19870",
        year="2024",
    ),
    {
        "momentum and removal of what was sent": "fedtern.core.feedback.DecayingFeedback.step",
        "cosine transform, top-k": "fedtern.core.compressors.CosineTopK.compress",
        "inverse transform": "fedtern.core.updates.Cosines.to_dense",
        "sign of the mean": "fedtern.core.compressors.Sign.compress",
    },
    (
        "Clients that do not take part in a round keep their momentum unchanged.",
        "A tensor with more than two axes is a matrix of its first axis by all others.",
        "Coefficients are rounded to float32 and positions are Golomb-coded gaps.",
    ),
)

GRID = Publication(
    "Gish and Pierce, 1968",
    bibtex(
        "article",
        "gish1968asymptotically",
        title="Asymptotically Efficient Quantizing",
        author="Gish, Herbert and Pierce, John N.",
        journal="IEEE Transactions on Information Theory",
        year="1968",
    ),
    {"uniform quantizer": "fedtern.core.compressors.NearestLevels.compress"},
    (
        "The publication shows that a uniform quantizer with an entropy code is close to the best"
        " one. Error feedback and a step relative to the root mean square are additions.",
        "Levels are written in Elias omega code, about a tenth above their entropy.",
    ),
)
