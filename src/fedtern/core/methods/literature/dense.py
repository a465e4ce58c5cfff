"""Publications of methods that send something for every weight."""

from __future__ import annotations

from fedtern.core.methods.recipe import Publication, bibtex

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
    },
    ("Clients count once each unless weighted=true, as in Sattler et al. (2019).",),
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
    ("A zero, or a tied vote, gets a random sign: it has none to send in one bit.",),
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
    ("both_ways=true compresses the mean likewise, as Zheng et al. (2019) do.",),
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
    ("Scales are not shared among clients, which would take a second exchange each round.",),
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
        "Theorem 3.2 (expected bits)": "fedtern.core.analytic.bits",
    },
    ("Buckets are cut from the flat vector, not from each tensor.",),
)
