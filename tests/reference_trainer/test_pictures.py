"""Pictures: PNG files that others can read, drawn with the averaged weights, and a run goes on as if none was drawn."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
import numpy  # noqa: E402
from torch import nn  # noqa: E402

from reference_trainer.core.objective import Objective  # noqa: E402
from reference_trainer.observe import draw, write_grid  # noqa: E402
from reference_trainer.state import Ema  # noqa: E402

pytestmark = pytest.mark.runtime

CPU = torch.device("cpu")


def read_png(path):
    """Rows of gray levels."""
    with Image.open(path) as image:
        assert (image.format, image.mode) == ("PNG", "L")
        return torch.from_numpy(numpy.array(image)).tolist()


def test_a_png_is_read_back_as_it_was_written(tmp_path):
    image = torch.tensor([[0.0, 0.5, 1.0], [2.0, -1.0, 0.2]])
    path = write_grid(image[None], tmp_path / "picture.png", columns=1, scale=1)
    gray = [128] * 5
    assert read_png(path) == [gray, [128, 0, 128, 255, 128], [128, 255, 0, 51, 128], gray]
    assert [each.name for each in tmp_path.iterdir()] == ["picture.png"]


def test_other_programs_read_it(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    found = image.imread(write_grid(torch.tensor([[[0.0, 1.0]]]), tmp_path / "picture.png", columns=1, scale=1))
    assert found.reshape(3, 4, -1)[1, 1:3, 0].tolist() == [0.0, 1.0]


def test_a_grid_has_its_images_row_by_row(tmp_path):
    images = torch.arange(6.0).view(6, 1, 1).expand(6, 2, 2) / 10
    found = torch.tensor(read_png(write_grid(images, tmp_path / "picture.png", columns=3, scale=2)))
    assert found.shape == (14, 20) and torch.equal(found[::2, ::2], found[1::2, 1::2])
    found = found[::2, ::2]
    assert found[1, 1::3].tolist() == [0, 26, 51] and found[4, 1::3].tolist() == [76, 102, 128]
    assert set(found[0].tolist()) == set(found[:, -1].tolist()) == {128}


class Painter(Objective):
    """Draws by noting what it sees, with a random number."""

    def __init__(self):
        self.module, self.seen, self.error = nn.Linear(1, 1, bias=False), [], None

    def draw(self, module, folder, step):
        torch.rand(1)
        self.seen.append((module.weight.item(), module.training, torch.is_grad_enabled(), step))
        if self.error:
            raise self.error
        return folder / "picture.png"


@pytest.fixture
def painter():
    """With a weight of 3, whose average is 1."""
    objective = Painter()
    nn.init.constant_(objective.module.weight, 1.0)
    average = Ema(objective.module, 0.9)
    nn.init.constant_(objective.module.weight, 3.0)
    return objective, average


def test_the_averaged_weights_draw_and_nothing_is_moved(painter, tmp_path):
    objective, average = painter
    before = torch.get_rng_state()
    assert draw(objective, average, tmp_path, 5, CPU) == f"drawn: {tmp_path / 'picture.png'}"
    assert draw(objective, None, tmp_path, 6, CPU)
    assert objective.seen == [(1.0, False, False, 5), (3.0, False, False, 6)]
    assert objective.module.weight.item() == 3.0 and objective.module.training
    assert torch.equal(torch.get_rng_state(), before)


def test_a_full_disk_costs_the_picture_and_not_the_run(painter, tmp_path):
    objective, average = painter
    objective.error = OSError(28, "No space left on device", "picture.png")
    assert draw(objective, average, tmp_path, 5, CPU) == "no picture of step 5: picture.png: No space left on device"
    assert objective.module.weight.item() == 3.0 and objective.module.training


def test_an_objective_that_draws_nothing_says_nothing(tmp_path):
    quiet = Objective()
    quiet.module = nn.Linear(1, 1)
    assert draw(quiet, None, tmp_path, 1, CPU) == ""
