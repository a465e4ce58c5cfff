"""Publications of methods that send low ranks or random parts."""

from __future__ import annotations

from fedtern.core.methods.recipe import Publication, bibtex

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
    ("Tensors that are no longer than their factors, such as biases, are sent whole.",),
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
        "Each side iterates by itself: the publication's all-reduce amid compression would take a"
        " second exchange each round. The mean is compressed likewise on its way down.",
        "Momentum is that of the clients' training, not applied after aggregation.",
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
        "structured random rotations": "fedtern.core.kernels.rotate",
    },
    (
        "The random factor of a low rank has entries of one size and random sign.",
        "Masks and sketches are of the flat model, biases included, not of each matrix.",
    ),
)
