"""Tasks, models and local training with PyTorch."""

from fedtern.core.extras import require

require("torch", "torch", "fedtern.training")  # raises an error with the install command

from fedtern.training.augment import CropFlip, pad  # noqa: E402
from fedtern.training.batches import Batches  # noqa: E402
from fedtern.training.examples import Examples  # noqa: E402
from fedtern.training.flat import FlatModel  # noqa: E402
from fedtern.training.objective import ACCURACY, Metric  # noqa: E402
from fedtern.training.optimizers import torch_schedule  # noqa: E402
from fedtern.training.tasks import TASKS, Task, get_task, register_task  # noqa: E402
from fedtern.training.tensors import compress_tensor  # noqa: E402

__all__ = [
    "ACCURACY",
    "TASKS",
    "Batches",
    "CropFlip",
    "Examples",
    "FlatModel",
    "Metric",
    "Task",
    "compress_tensor",
    "get_task",
    "pad",
    "register_task",
    "torch_schedule",
]
