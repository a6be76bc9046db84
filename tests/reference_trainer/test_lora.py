"""LoRA: begins as the model it is put into, trains alone, is equal on all ranks; leaves merged, or as an adapter."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
import safetensors.torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from trainer_runs import same, saved_in  # noqa: E402
from trainer_runs import trained as go_on  # noqa: E402
from validate_ddp.testing import assert_replicas_equal  # noqa: E402

import reference_trainer  # noqa: E402
from reference_trainer.checkpoint import CheckpointError, export, latest  # noqa: E402
from reference_trainer.checkpoint.run import RunCheckpoints  # noqa: E402
from reference_trainer.cli import export as export_command  # noqa: E402
from reference_trainer.config import CheckpointConfig, Config, ConfigError, DataConfig, EmaConfig, LoraConfig  # noqa: E402
from reference_trainer.core.objective import Loss, Objective  # noqa: E402
from reference_trainer.launch import World  # noqa: E402
from reference_trainer.lora import LoraLinear, inject_lora, merge_lora  # noqa: E402
from reference_trainer.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.runtime

WIDTH = 8
LAYERS = [f"blocks.{n}.{end}" for n in (0, 1) for end in ("ffn.0", "ffn.2", *(f"self_attn.{x}" for x in "koqv"))]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        return self.o(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention()
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.self_attn(x)
        return x + self.ffn(x)


class Transformer(nn.Module):
    """Images (n, 64) as 8 tokens of 8."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x.unflatten(1, (8, WIDTH))
        for block in self.blocks:
            x = block(x)
        return self.head(x).flatten(1)


class Rebuild(Objective):
    """The images as they are, less one half."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.module = Transformer()

    def loss(self, forward, batch):
        image = batch.data["image"]
        return Loss(F.mse_loss(forward(image), image - 0.5, reduction="sum"), {}, {})

    def evaluate(self, module, batch):
        return {"error": self.loss(module, batch).sum}


LORA = LoraConfig(rank=2, alpha=3.0)
CONFIG = Config(
    precision="float64",
    steps=5,
    global_batch=12,
    lora=LORA,
    ema=EmaConfig(0.5),
    data=DataConfig(train_samples=60, validation_samples=10),
)


def trained(config, folder, until=None, seed=0):
    return go_on(config, folder, until, Trainer(config, World.current(), objective=Rebuild(seed)))


# The module.


def test_a_module_with_new_lora_computes_what_it_did_and_trains_a_and_b_alone():
    module, plain, x = Rebuild().module, Rebuild().module, torch.randn(3, 64)
    assert sorted(reference_trainer.inject_lora(module)) == LAYERS
    assert torch.equal(module(x), plain(x))
    trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
    assert sorted(trained) == sorted(f"{layer}.lora_{which}.weight" for layer in LAYERS for which in "AB")
    assert trained["blocks.0.ffn.0.lora_A.weight"].shape == (32, WIDTH)
    assert trained["blocks.0.ffn.0.lora_B.weight"].shape == (2 * WIDTH, 32)
    # What was there keeps its names.
    assert dict.fromkeys(plain.state_dict()).items() <= dict.fromkeys(module.state_dict()).items()


def test_a_depends_on_seed_and_layer_and_on_no_global_generator():
    def of(seed):
        module = Rebuild().module
        torch.manual_seed(123 + seed)
        before = torch.get_rng_state()
        inject_lora(module, LORA, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        return [layer.lora_A.weight for layer in module.modules() if isinstance(layer, LoraLinear)]

    first, again, other = of(1), of(1), of(2)
    assert same(first, again) and not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (LoraConfig(1, targets=("q",)), ["blocks.0.self_attn.q", "blocks.1.self_attn.q"]),
        (LoraConfig(1, targets=("q", "ffn.2"), within="blocks.1"), ["blocks.1.ffn.2", "blocks.1.self_attn.q"]),
        (LoraConfig(1, targets=("head",)), ["head"]),
        (LoraConfig(1, targets=("blocks.0.ffn.0",)), ["blocks.0.ffn.0"]),
    ],
)
def test_targets_are_ends_of_names_by_whole_parts_within_a_part(config, layers):
    assert sorted(inject_lora(Rebuild().module, config)) == layers


@pytest.mark.parametrize("config", [LoraConfig(1, targets=("n",)), LoraConfig(1, targets=("q",), within="block")])
def test_targets_that_name_nothing_are_told_with_the_layers_that_there_are(config):
    with pytest.raises(ConfigError) as told:
        inject_lora(Rebuild().module, config)
    line = str(told.value)
    assert line.startswith(f"lora.targets {config.targets[0]}") and "\n" not in line
    assert "there are blocks.0.self_attn.q, " in line and line.endswith(", head")


def test_a_layer_in_two_places_gets_one_lora_and_what_is_derived_from_linear_none():
    module = nn.ModuleDict({"q": nn.Linear(4, 4), "attention": nn.MultiheadAttention(4, 1)})
    module["k"] = module["q"]
    assert inject_lora(module, LoraConfig(1, targets=("q", "k", "out_proj"))) == ["q"]
    assert module["k"] is module["q"] and isinstance(module["q"], LoraLinear)
    assert merge_lora(module) == ["q"] and type(module["k"]) is nn.Linear and module["k"] is module["q"]


def test_dropout_is_of_loras_input_alone_and_off_in_evaluation():
    layer = nn.ModuleDict({"q": nn.Linear(64, 4)})
    inject_lora(layer, LoraConfig(2, dropout=0.9, targets=("q",)))
    lora, x = layer["q"], torch.randn(1, 64)
    with torch.no_grad():
        lora.lora_B.weight.normal_()
    assert not torch.equal(lora(x), lora(x))
    layer.eval()
    expected = F.linear(x, lora.weight, lora.bias) + lora.lora_B(lora.lora_A(x))
    torch.testing.assert_close(lora(x), expected)


def test_merged_weights_are_w_and_alpha_by_r_times_b_a():
    module, x = Rebuild().module, torch.randn(3, 64)
    inject_lora(module, LORA)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, LoraLinear):
                layer.lora_B.weight.normal_()
    layer = module.blocks[0].ffn[0]
    expected, out = layer.weight + 1.5 * layer.lora_B.weight @ layer.lora_A.weight, module(x)
    assert sorted(merge_lora(module)) == LAYERS
    torch.testing.assert_close(module.blocks[0].ffn[0].weight, expected, check_stride=False)
    torch.testing.assert_close(module(x), out, rtol=0, atol=1e-5)
    assert module.state_dict().keys() == Rebuild().module.state_dict().keys()


# A run.


def test_two_ranks_train_lora_as_one_does_and_leave_the_rest_alone(worlds, tmp_path):
    alone = trained(CONFIG, tmp_path / "one")
    base = Rebuild().module.double().state_dict()
    for rank in worlds.run(trained, CONFIG, tmp_path / "two", world_size=2):
        for name, weight in rank["model"].items():
            torch.testing.assert_close(weight, alone["model"][name], rtol=0, atol=1e-12)
        assert all(torch.equal(rank["model"][name], weight) for name, weight in base.items())
    assert alone["model"]["blocks.1.self_attn.q.lora_B.weight"].abs().max() > 0


@pytest.mark.world_size([1, 2])
def test_a_resumed_lora_run_is_the_uninterrupted_one_bit_by_bit(world, tmp_path):
    config = replace(CONFIG, precision="float32", lora=replace(LORA, dropout=0.5))
    whole = trained(config, tmp_path / "whole")
    trained(config, tmp_path / "parts", until=2)
    last = trained(config, tmp_path / "parts")
    assert same(last, whole)
    assert_replicas_equal({name: last[name] for name in ("model", "ema", "moments")})


def test_fine_tuning_begins_with_the_weights_of_a_run_without_lora(tmp_path):
    base = trained(replace(CONFIG, lora=LoraConfig()), tmp_path / "base")["model"]
    config = replace(CONFIG, checkpoint=CheckpointConfig(init_from=str(tmp_path / "base")))
    tuned = trained(config, tmp_path / "tuned", seed=1)["model"]
    assert all(torch.equal(tuned[name], weight) for name, weight in base.items()) and tuned.keys() > base.keys()
    # And with those of a run with it.
    config = replace(CONFIG, checkpoint=CheckpointConfig(init_from=str(tmp_path / "tuned")))
    trainer = Trainer(config, World(), objective=Rebuild(2))
    with RunCheckpoints(tmp_path / "again", config, trainer.plan, World()) as checkpoints:
        checkpoints.begin(trainer.state)
    assert same(dict(trainer.state.objective.module.state_dict()), tuned)
    plain = replace(config, lora=LoraConfig())
    trainer = Trainer(plain, World(), objective=Rebuild(2))
    told = pytest.raises(CheckpointError, match=r"it has in addition .*--lora merged gives weights without\)$")
    with RunCheckpoints(tmp_path / "plain", plain, trainer.plan, World()) as checkpoints, told:
        checkpoints.begin(trainer.state)


def test_half_of_lora_in_a_file_is_a_file_that_does_not_fit(tmp_path):
    module = Rebuild().module
    inject_lora(module, LORA)
    state = module.state_dict()
    del state["blocks.0.ffn.0.lora_A.weight"]
    reference_trainer.save(state, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=r"it has no blocks.0.ffn.0.lora_A.weight$"):
        reference_trainer.checkpoint.initialise(module, tmp_path / "weights.pt")


def based(folder, **changes):
    """A configuration that tunes the weights of the run in ``folder``, and saves what it trains alone."""
    checkpoint = CheckpointConfig(init_from=str(folder), adapter_only=True)
    return replace(CONFIG, checkpoint=checkpoint, **changes)


def test_an_adapter_is_saved_alone_and_its_base_by_path_and_hash(worlds, tmp_path):
    trained(replace(CONFIG, lora=LoraConfig(), ema=EmaConfig()), tmp_path / "base")
    config = based(tmp_path / "base")
    whole = trained(config, tmp_path / "whole", seed=1)
    for size, until in ((1, 2), (2, 4), (1, 5)):
        last = worlds.run(trained, config, tmp_path / "parts", until, 1, world_size=size)[0]
    for part in ("model", "ema"):
        assert all(torch.allclose(last[part][name], each, rtol=0, atol=1e-12) for name, each in whole[part].items())
    folder = latest(tmp_path / "parts")
    with safetensors.safe_open(next(folder.glob("shard-*")), framework="pt") as file:
        assert {name.partition(".")[0] for name in list(file.keys()) if "lora_" not in name} == {"optimizer"}
    # Whole again for those who ask; and none of it where the base is another, or gone.
    assert same(saved_in(folder)["model"], last["model"])
    export(tmp_path / "parts", tmp_path / "merged.safetensors", ema=True, lora="merged")
    assert safetensors.torch.load_file(tmp_path / "merged.safetensors").keys() == Rebuild().module.state_dict().keys()
    base = latest(tmp_path / "base")
    base.rename(base.with_name("step-00000009"))
    with pytest.raises(CheckpointError, match="step-00000005 is no file with weights, no checkpoint"):
        trained(config, tmp_path / "parts", seed=1)
    trained(replace(CONFIG, seed=8, lora=LoraConfig(), ema=EmaConfig()), tmp_path / "other", seed=8)
    latest(tmp_path / "other").rename(base)
    with pytest.raises(CheckpointError, match=r"is not what the run began with .* another SHA-256"):
        trained(config, tmp_path / "parts", seed=1)


def test_an_adapter_alone_needs_a_base():
    with pytest.raises(ConfigError, match=r"checkpoint.adapter_only needs checkpoint.init_from"):
        Config(checkpoint=CheckpointConfig(adapter_only=True))


@pytest.mark.parametrize("half", ["frozen", "all"])
def test_what_is_frozen_or_all_is_held_in_bfloat16(tmp_path, half):
    config = replace(CONFIG, precision="bf16", half=half)
    whole = trained(config, tmp_path / "whole")
    for name, each in whole["model"].items():
        assert each.dtype == (torch.float32 if half == "frozen" and "lora_" in name else torch.bfloat16)
    assert {each.dtype for each in whole["ema"].values()} == {torch.float32}
    assert any(each.abs().max() > 0 for name, each in whole["model"].items() if "lora_B" in name)
    trained(config, tmp_path / "parts", until=2)
    assert same(trained(config, tmp_path / "parts"), whole)
    with pytest.raises(ConfigError, match=rf"half is {half} and precision float32; weights in bfloat16 need"):
        Config(half=half)


# Out of a run.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of LoRA in float32: its folder, its module."""
    folder, config = tmp_path_factory.mktemp("lora"), replace(CONFIG, precision="float32")
    trainer = Trainer(config, World(), objective=Rebuild())
    with RunCheckpoints(folder, config, trainer.plan, World()) as checkpoints:
        checkpoints.begin(trainer.state)
        for _ in trainer.steps():
            pass
        checkpoints.save(trainer.state)
    return folder, trainer


@pytest.mark.parametrize("ema", [False, True])
def test_merged_weights_go_into_the_model_without_lora_and_compute_the_same(run, tmp_path, ema, capsys):
    folder, trainer = run
    out = tmp_path / "merged.safetensors"
    assert export_command([str(folder), str(out), "--lora", "merged", *(["--ema"] if ema else [])]) == 0
    assert capsys.readouterr().out.endswith(f"{'averaged ' * ema}weights (merged) of {latest(folder)}\n")
    plain, x = Transformer(), torch.randn(5, 64)
    plain.load_state_dict(safetensors.torch.load_file(out))
    module = trainer.state.objective.module
    with torch.no_grad():
        if ema:
            with trainer.state.ema.swapped(module):
                expected = module(x)
        else:
            expected = module(x)
        torch.testing.assert_close(plain(x), expected, rtol=0, atol=1e-6)
        assert not torch.allclose(Rebuild().module(x), expected, rtol=0, atol=1e-4)


def test_an_adapter_is_a_folder_with_the_names_of_peft(run, tmp_path):
    folder, trainer = run
    assert export(folder, tmp_path / "adapter", lora="adapter") == latest(folder)
    assert sorted(each.name for each in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert len({each.stat().st_mode for each in (tmp_path / "adapter").iterdir()}) == 1
    found, module = (
        safetensors.torch.load_file(tmp_path / "adapter" / "adapter_model.safetensors"),
        trainer.state.objective.module,
    )
    expected = {f"base_model.model.{name}": each for name, each in module.state_dict().items() if "lora_" in name}
    assert len(expected) == 2 * len(LAYERS) and same(found, expected)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 3.0, LAYERS)


def test_what_cannot_be_exported_is_told_and_leaves_nothing(run, tmp_path):
    folder, _ = run
    plain = tmp_path / "plain"
    trained(replace(CONFIG, lora=LoraConfig(), steps=1, ema=EmaConfig()), plain)
    for form in ("merged", "adapter"):
        with pytest.raises(CheckpointError, match=r"was trained without LoRA \(lora.rank is 0\)"):
            export(plain, tmp_path / "out", lora=form)
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(CheckpointError, match="there is there already"):
            export(folder, tmp_path / "there", lora=form)
        export(folder, tmp_path / f"{form}.safetensors")
        with pytest.raises(CheckpointError, match="is no run and no checkpoint"):
            export(tmp_path / f"{form}.safetensors", tmp_path / "out", lora=form)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_peft_loads_the_adapter_and_computes_the_same(run, tmp_path):
    peft = pytest.importorskip("peft")
    folder, trainer = run
    export(folder, tmp_path / "adapter", lora="adapter")
    loaded = peft.PeftModel.from_pretrained(Rebuild().module, str(tmp_path / "adapter")).eval()
    module, x = trainer.state.objective.module.eval(), torch.randn(50, 64)
    with torch.no_grad():
        expected, found = module(x), loaded(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert not torch.allclose(Rebuild().module(x), expected, rtol=0, atol=1e-3)
    print(f"largest difference to peft: {(found - expected).abs().max():.3g}")
    again = loaded.merge_and_unload()
    torch.testing.assert_close(again.blocks[0].ffn[0].weight, _merged(module), rtol=0, atol=1e-6)


def _merged(module):
    layer = module.blocks[0].ffn[0]
    return layer.weight + layer.scale * layer.lora_B.weight @ layer.lora_A.weight
