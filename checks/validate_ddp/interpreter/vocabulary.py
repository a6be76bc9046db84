"""The words of distributed PyTorch: library names of collectives, writers and ranks, and local names that hint."""

from __future__ import annotations

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
"""Import roots that are never followed, even where a folder of that name lies beside the script."""

LAUNCHERS = frozenset("accelerate lightning lightning_fabric lightning_utilities pytorch_lightning".split())
"""Libraries whose decorators of rank zero are known."""

PASSING_ON = LAUNCHERS | frozenset(
    "torch functools contextlib typing typing_extensions dataclasses builtins abc numba wandb ray".split()
)
"""Libraries whose decorators pass a call on with the arguments that it has."""

CHECKPOINT_WRITERS = frozenset({"torch.save", "safetensors.torch.save_file", "safetensors.torch.save_model"})

GLOBAL_RANK = frozenset(
    """rank global_rank world_rank proc_rank process_index process_rank dist_rank ddp_rank my_rank rank_id
    process_id proc_id cur_rank node_global_rank""".split()
)
LOCAL_RANK = frozenset(
    """local_rank gpu gpu_id local_process_index ddp_local_rank local_proc_id localrank gpu_index device_rank
    local_process_id""".split()
)
DEVICE_NUMBER = frozenset("gpu gpu_id gpu_index".split())
"""Those of the names above that as often say which device to use, or whether to use one: ``if args.gpu:``."""
_DIMENSIONS = """data tensor pipeline model tensor_model pipeline_model context expert expert_model sequence
    data_modulo_expert""".split()
GROUP_RANK = frozenset(f"{dimension}_parallel_rank" for dimension in _DIMENSIONS) | frozenset(
    """dp_rank tp_rank pp_rank cp_rank ep_rank sp_rank mp_rank etp_rank edp_rank fsdp_rank ulysses_rank shard_rank
    replica_rank mesh_rank dp_shard_rank dp_replicate_rank""".split()
)
"""Ranks within a group: of one dimension of a mesh, each number of which several ranks of the world have."""
OF_A_RANK = frozenset("rank ranks master main leader chief primary node host hostname worker shard pid".split())
"""Words in the names of settings that a program may fill in for each rank: `args.profile.this_rank`."""
OF_A_PROCESS = OF_A_RANK | frozenset("id procid proc process task local index device gpu".split())
"""Words in the names of variables of the environment that a launcher may set for each rank: `FLUX_TASK_LOCAL_ID`."""
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
WORLD_SIZE = frozenset(
    """world_size num_processes num_gpus n_gpus n_gpu ngpus ngpu num_gpu gpu_num gpus_num world num_replicas nprocs
    ngpus_per_node ngpus_per_proc gpus_per_node total_gpus total_gpu_num ddp_world_size num_of_gpus device_num
    n_procs""".split()
)
MAIN_PROCESS = frozenset(
    """is_main_process is_main is_master is_master_process master_process main_process is_rank0 is_rank_0 is_rank_zero
    rank_zero is_zero_rank is_chief is_primary is_global_zero is_world_process_zero is_world_master is_first_worker
    is_master_rank is_main_rank is_global_master is_master_node is_root is_rank_zero_process is_primary_rank
    is_main_worker is_first_rank is_master_proc is_global_primary is_head is_global_rank_zero on_main_process is_leader
    is_coordinator is_lead_worker master""".split()
)
ADDRESS = frozenset({"master"})
"""Those of the names above that as often say where the main process is: ``if args.master:``."""
LOCAL_MAIN_PROCESS = frozenset(
    "is_local_main_process is_local_master is_local_zero is_local_rank_zero is_local_primary is_local_main".split()
)
RANK_ZERO_DECORATORS = frozenset(
    """rank_zero_only rank0_only main_process_only master_only on_main_process master_process_only only_main_process
    main_only primary_only rank_zero main_rank_only on_rank_zero""".split()
)
DISTRIBUTED_FLAG = frozenset(
    """distributed is_distributed use_distributed use_dist is_dist ddp use_ddp is_ddp enable_ddp dist_train
    distributed_training multi_gpu multigpu use_multi_gpu is_multi_gpu multiprocessing_distributed is_parallel
    distribute distributed_run is_dist_avail_and_initialized is_distributed_initialized using_distributed
    has_distributed is_dist_initialized is_available_and_initialized ddp_enabled parallel_training is_dist_env
    enable_distributed run_distributed dist_enabled is_initialized multi_process is_using_distributed
    is_distributed_training do_distributed distributed_train ddp_run use_multiprocessing_distributed
    is_multigpu""".split()
)

KEYS = (
    COLLECTIVES
    | HOROVOD_COLLECTIVES
    | GLOBAL_RANK
    | LOCAL_RANK
    | GROUP_RANK
    | frozenset(f"get_{name}" for name in GROUP_RANK)
    | WORLD_SIZE
    | MAIN_PROCESS
    | LOCAL_MAIN_PROCESS
    | DISTRIBUTED_FLAG
    | frozenset(RANK_VARIABLES)
    | WORLD_VARIABLES
    | frozenset(
        """save load load_url dump open write state_dict load_state_dict module backward set_epoch DataLoader
        DistributedSampler DistributedDataParallel DDP FSDP fully_shard Accelerator prepare
        init_process_group destroy_process_group init_distributed set_device get_rank get_world_size
        is_initialized spawn Process cuda_device device_ids distributed save_checkpoint save_state
        save_pretrained savez save_model basicConfig FileHandler SummaryWriter copyfile copy2 rmtree
        write_text write_bytes safe_dump yaml_save main_process_first is_avail parse_args parse_known_args lr_scheduler
        get_scheduler manual_seed seed_everything set_seed fabric Fabric hvd accelerator no_sync unwrap_model
        randn_like RandomResizedCrop RandomCrop RandomHorizontalFlip DataParallel zero_grad
        consolidate_state_dict get_model_state_dict get_optimizer_state_dict full_optim_state_dict
        optim_state_dict summon_full_params save_16bit_model""".split()
    )
)
"""A function none of whose identifiers is one of these, and which uses no function that has one, cannot matter."""

OPTIONS = KEYS | frozenset("local-rank backend dist_backend dist-backend".split())
"""The same of short strings, such as the names of options, without their hyphens in front."""
