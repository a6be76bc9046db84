"""The words of distributed PyTorch: what libraries and launchers call collectives, writers, ranks and worlds."""

from __future__ import annotations

from validate_ddp.interpreter import names, names_of_training

COLLECTIVES = frozenset(
    """all_reduce all_gather all_gather_into_tensor all_gather_object all_gather_coalesced all_reduce_coalesced
    all_to_all all_to_all_single barrier monitored_barrier broadcast broadcast_object_list gather gather_object
    new_group new_subgroups new_subgroups_by_enumeration reduce reduce_scatter reduce_scatter_tensor scatter
    scatter_object_list _all_gather_base _reduce_scatter_base reduce_multigpu all_reduce_multigpu
    broadcast_multigpu all_gather_multigpu init_device_mesh broadcast_coalesced""".split()
)
"""Functions of torch.distributed (and of its functional and autograd forms) that every rank of the group must call."""

HOROVOD_COLLECTIVES = frozenset(
    """allreduce allreduce_ allreduce_async allreduce_async_ allgather allgather_async allgather_object broadcast
    broadcast_ broadcast_async broadcast_async_ broadcast_parameters broadcast_optimizer_state broadcast_object
    barrier alltoall reducescatter grouped_allreduce""".split()
)
MPI_COLLECTIVES = frozenset(
    """bcast Bcast allreduce Allreduce allgather Allgather gather Gather scatter Scatter barrier Barrier reduce Reduce
    alltoall Alltoall""".split()
)
ACCELERATE_COLLECTIVES = frozenset(
    "gather gather_for_metrics reduce wait_for_everyone pad_across_processes broadcast broadcast_object_list".split()
)
ACCELERATE_UTILITIES = ACCELERATE_COLLECTIVES | {"gather_object"}
FABRIC_COLLECTIVES = frozenset("all_gather all_reduce barrier broadcast".split())

LIBRARIES = frozenset(
    """torch torchvision torchaudio torchdata torchtext accelerate lightning lightning_fabric pytorch_lightning
    deepspeed horovod apex transformers diffusers datasets numpy scipy pandas sklearn fairscale mpi4py wandb mlflow
    tensorboardX tensorboard torch_xla peft xformers flash_attn einops hydra omegaconf tqdm yaml PIL cv2 matplotlib
    safetensors huggingface_hub evaluate bitsandbytes megatron colossalai monai webdataset ignite ray
    builtins os sys""".split()
)
"""Import roots that are never followed, even where a folder of that name lies beside the script: it is a copy."""

COMMON_NAMES = frozenset("datasets evaluate".split())
"""Those of them that projects give to modules of their own too: one beside the script is what Python imports."""

LAUNCHERS = frozenset("accelerate lightning lightning_fabric lightning_utilities pytorch_lightning".split())
"""Libraries whose decorators of rank zero are known."""

PASSING_ON = LAUNCHERS | frozenset(
    "torch functools contextlib typing typing_extensions dataclasses builtins abc numba wandb ray".split()
)
"""Libraries whose decorators pass a call on with the arguments that it has."""

CHECKPOINT_WRITERS = frozenset({"torch.save", "safetensors.torch.save_file", "safetensors.torch.save_model"})

RANK_VARIABLES = {
    "RANK": "global",
    "SLURM_PROCID": "global",
    "OMPI_COMM_WORLD_RANK": "global",
    "PMI_RANK": "global",
    "LOCAL_RANK": "local",
    "SLURM_LOCALID": "local",
    "OMPI_COMM_WORLD_LOCAL_RANK": "local",
    "MPI_LOCALRANKID": "local",
    "SLURM_NODEID": "node",
    "GROUP_RANK": "node",
    "NODE_RANK": "node",
}
WORLD_VARIABLES = frozenset(
    "WORLD_SIZE SLURM_NTASKS SLURM_NPROCS OMPI_COMM_WORLD_SIZE PMI_SIZE LOCAL_WORLD_SIZE".split()
)
RENDEZVOUS = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
"""Variables by which the ranks find each other, which a launcher sets."""
KEYS = (
    names.GLOBAL_RANK.words
    | names.LOCAL_RANK.words
    | names.GROUP_RANK.words
    | frozenset(f"get_{name}" for name in names.GROUP_RANK.words)
    | names.WORLD_SIZE.words
    | names.MAIN_PROCESS.words
    | names.LOCAL_MAIN_PROCESS.words
    | names.DISTRIBUTED_FLAG.words
    | names_of_training.RANDOM_OPTION.words
    | frozenset(RANK_VARIABLES)
    | WORLD_VARIABLES
    | frozenset(
        """accelerator cuda_device device_ids distributed download fabric get_scheduler get_world_size hvd is_avail
        is_initialized load_url lr_scheduler no_sync parse_args parse_known_args rmtree unwrap_model write""".split()
    )
)
"""Words of a function that may matter, beside the names of what is declared to record a fact: ``Registry.words``."""

OPTIONS = frozenset("local-rank backend dist_backend dist-backend".split())
"""More of these that are no identifiers, but options, without their hyphens in front."""

EVERYDAY = frozenset(
    """__call__ add apply bfloat16 call clone compile contiguous cpu cuda deepcopy detach device double eval float
    forward half npu requires_grad_ run script share_memory share_memory_ size step to train type xpu""".split()
)
"""Names that record a fact, but that most functions of a model have: no function matters for one of these alone."""
