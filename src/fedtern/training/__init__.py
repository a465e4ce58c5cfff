"""Models, tasks and batches on PyTorch: the only part of the package that imports torch."""

from fedtern.core.extras import require

require("torch", "torch", "fedtern.training")  # before an import below fails less helpfully

from fedtern.training.augment import CropFlip as CropFlip  # noqa: E402
from fedtern.training.augment import pad as pad  # noqa: E402
from fedtern.training.batches import Batches as Batches  # noqa: E402
from fedtern.training.examples import Examples as Examples  # noqa: E402
from fedtern.training.tasks import TASKS as TASKS  # noqa: E402
from fedtern.training.tasks import Task as Task  # noqa: E402
from fedtern.training.tasks import get_task as get_task  # noqa: E402
from fedtern.training.tasks import register_task as register_task  # noqa: E402
from fedtern.training.tensors import compress_tensor as compress_tensor  # noqa: E402
