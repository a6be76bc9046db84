"""All guesses from names of what a rank is, who runs something, and how many ranks there are: each with its case.

Ranks, tests and flags that are guessed are marked as such, and no finding that rests on one is an error.
"""

from __future__ import annotations

from validate_ddp.interpreter.guess import Guess

GLOBAL_RANK = Guess(
    "the rank in the world",
    "value",
    words="""rank global_rank world_rank proc_rank process_index process_rank dist_rank ddp_rank my_rank rank_id
    process_id proc_id cur_rank node_global_rank gpu_rank""",
    case="if args.rank == 0:",
    otherwise="the guard is unknown, and what it leaves to rank zero counts as done by every rank",
)
SOME_RANK = Guess(
    "a rank of whatever kind",
    "value",
    ends="rank",
    case="if local_rank != -1:",
    otherwise="a fix leaves out the single process, whose rank the script says is -1",
)
DEVICE_NUMBER = Guess(
    "which device to use, or whether to use one, as often as a rank",
    "value",
    words="gpu gpu_id gpu_index",
    case="if args.gpu:",
    otherwise="a question whether there is a GPU counts as one about the rank",
)
LOCAL_RANK = Guess(
    "the rank within the node",
    "value",
    words="""local_rank local_process_index ddp_local_rank local_proc_id localrank device_rank local_process_id """
    + " ".join(DEVICE_NUMBER.words),
    case="torch.cuda.set_device(args.local_rank)",
    otherwise="the device that a rank chooses is unknown",
)
_DIMENSIONS = (
    "data tensor pipeline model tensor_model pipeline_model context expert expert_model sequence data_modulo_expert"
)
GROUP_RANK = Guess(
    "the rank in a group, of one dimension of a mesh: several ranks of the world have each number",
    "value",
    words=" ".join(f"{dimension}_parallel_rank" for dimension in _DIMENSIONS.split())
    + """ dp_rank tp_rank pp_rank cp_rank ep_rank sp_rank mp_rank etp_rank edp_rank fsdp_rank ulysses_rank shard_rank
    replica_rank mesh_rank dp_shard_rank dp_replicate_rank""",
    case="if cfg.tp_rank == 0:",
    otherwise="the first rank of each group counts as rank zero of the world",
)
GROUP_RANK_GETTER = Guess(
    "returns the rank in a group",
    "function",
    ends="parallel_rank",
    case="if mpu.get_vocab_parallel_rank() == 0:",
    otherwise="what Megatron's getters return for further dimensions is unknown",
)
RANKING = Guess(
    "puts into an order: called as a plain function, it is no rank",
    "function",
    words=" ".join(GLOBAL_RANK.words - {"global_rank"}),
    case="order = rank(scores)",
    otherwise="the order of some scores counts as the process's rank",
)
OF_NO_PROCESS = Guess(
    "is no rank when it is called, not as a method either",
    "function",
    words="rank_id " + " ".join(DEVICE_NUMBER.words),
    case="card = node.gpu_id()",
    otherwise="the number of a device counts as the process's rank",
)
OF_A_RANK = Guess(
    "may differ between the ranks, although it is a setting",
    "option",
    parts="rank ranks master main leader chief primary node host hostname worker shard pid",
    case="if args.profile.this_rank:",
    otherwise="a setting that the program fills in for each rank counts as equal on all",
)
OF_A_PROCESS = Guess(
    "may be set by a launcher for each process",
    "variable",
    parts=" ".join(OF_A_RANK.parts) + " id procid proc process task local index device gpu",
    case='local = int(os.environ["FLUX_TASK_LOCAL_ID"])',
    otherwise="what a launcher says to each process counts as equal on all",
)
WORLD_SIZE = Guess(
    "the number of ranks",
    "value",
    words="""world_size num_processes num_gpus n_gpus n_gpu ngpus ngpu num_gpu gpu_num gpus_num world num_replicas
    nprocs ngpus_per_node ngpus_per_proc gpus_per_node total_gpus total_gpu_num ddp_world_size num_of_gpus device_num
    n_procs""",
    case="if args.world_size > 1:",
    otherwise="what is done on several ranks only counts as perhaps not done at all",
)
DEVICES = Guess(
    "holds one entry for each rank",
    "value",
    holds="gpu device_ids devices local_ranks",
    case="if len(args.gpus) > 1:",
    otherwise="a launch on several devices counts as one that may have a single rank",
)
ADDRESS = Guess(
    "where the main process is, as often as whether this is it",
    "value",
    words="master",
    case="if args.master:",
    otherwise="an address that is given counts as a test for rank zero",
)
MAIN_PROCESS = Guess(
    "true on rank zero",
    "value",
    words="""is_main_process is_main is_master is_master_process master_process main_process is_rank0 is_rank_0
    is_rank_zero rank_zero is_zero_rank is_chief is_primary is_global_zero is_world_process_zero is_world_master
    is_first_worker is_master_rank is_main_rank is_global_master is_master_node is_root is_rank_zero_process
    is_primary_rank is_main_worker is_first_rank is_master_proc is_global_primary is_head is_global_rank_zero
    on_main_process is_leader is_coordinator is_lead_worker """
    + " ".join(ADDRESS.words),
    case="if cfg.is_main_process:",
    otherwise="a save that rank zero alone makes counts as made by every rank",
)
LOCAL_MAIN_PROCESS = Guess(
    "true on the first rank of each node",
    "value",
    words="is_local_main_process is_local_master is_local_zero is_local_rank_zero is_local_primary is_local_main",
    case="if cfg.is_local_main_process:",
    otherwise="a save that one rank of each node makes counts as made by every rank",
)
RANK_ZERO_DECORATOR = Guess(
    "runs its function on rank zero alone",
    "function",
    words="""rank_zero_only rank0_only main_process_only master_only on_main_process master_process_only
    only_main_process main_only primary_only rank_zero main_rank_only on_rank_zero""",
    case="@master_only",
    otherwise="a save in such a function counts as made by every rank",
)
LOCAL_ZERO_DECORATOR = Guess(
    "runs its function on the first rank of each node alone",
    "function",
    words="on_local_main_process local_main_process_only",
    case="@local_main_process_only",
    otherwise="a save in such a function counts as made by every rank",
)
DISTRIBUTED_FLAG = Guess(
    "true in a launch on several ranks",
    "value",
    words="""distributed is_distributed use_distributed use_dist is_dist ddp use_ddp is_ddp enable_ddp dist_train
    distributed_training multi_gpu multigpu use_multi_gpu is_multi_gpu multiprocessing_distributed is_parallel
    distribute distributed_run is_dist_avail_and_initialized is_distributed_initialized using_distributed
    has_distributed is_dist_initialized is_available_and_initialized ddp_enabled parallel_training is_dist_env
    enable_distributed run_distributed dist_enabled is_initialized multi_process is_using_distributed
    is_distributed_training do_distributed distributed_train ddp_run use_multiprocessing_distributed is_multigpu""",
    case="if args.distributed:",
    otherwise="the branch for one process is walked too, and its plain sampler and model are found wrong",
)
MESH = Guess(
    "a mesh of devices, whose local rank is that of a dimension",
    "value",
    holds="mesh",
    dotted=True,
    case='if self.device_mesh.get_local_rank("tp") == 0:',
    otherwise="a rank in a dimension of a mesh counts as that of the node",
)
GROUP = Guess(
    "a process group, whose rank is not that of the world",
    "value",
    ends="group _pg",
    case="if self.tp_group.rank() == 0:",
    otherwise="the first rank of each group counts as rank zero of the world",
)
GROUP_GETTER = Guess(
    "came from what returns a process group",
    "value",
    holds="get_group",
    dotted=True,
    case='if mesh.get_group("dp").rank() == 0:',
    otherwise="the first rank of each group counts as rank zero of the world",
)
LAUNCHER = Guess(
    "an object of a launcher's library, which lets all ranks wait",
    "value",
    words="accelerator fabric strategy",
    case="trainer.strategy.barrier()",
    otherwise="a barrier of some ranks alone is not seen",
)
FIRST = Guess(
    "lets one rank go first, and then the others",
    "function",
    ends="_first",
    case="with torch_distributed_zero_first(rank):",
    otherwise="a download that rank zero makes for all counts as made by all at once",
)
LOCK = Guess(
    "lets one process at a time pass",
    "function",
    holds="lock",
    case="with FileLock(path):",
    otherwise="a file that is written under a lock counts as written by all ranks at once",
)
ASKS_FOR_RANK = Guess(
    "the condition is about the rank",
    "text",
    holds="rank main",
    dotted=True,
    case="if rank0_has(writer):",
    otherwise="an object of rank zero, used under a condition on the rank out of sight, counts as used by all ranks",
)
MAY_ASK_FOR_RANK = Guess(
    "the condition may be about the rank",
    "text",
    holds="rank main master local proc",
    dotted=True,
    case="if proc_index() == FIRST:",
    otherwise="a comparison that holds on rank zero alone counts as one that all ranks make alike",
)
OF_NODE = Guess(
    "the code means the node, not the world",
    "text",
    holds="local",
    dotted=True,
    case="if args.local_rank == 0:",
    otherwise="a guard which chooses one rank by other means counts as one that forgot the other nodes",
)
LOCAL_MAIN = Guess(
    "the code means the first rank of each node, on purpose or not",
    "text",
    holds="local_main",
    dotted=True,
    case="if accelerator.is_local_main_process:",
    otherwise="a save on every node is only an advice, where Accelerate's flag shows that there may be several",
)
LOCAL_PLACE = Guess(
    "the code writes for its own node",
    "text",
    holds="local_",
    dotted=True,
    case="torch.save(state, local_path)",
    otherwise="a copy for each node's own disk counts as written to one path by several nodes",
)
HOSTNAME = Guess(
    "the path has the node's name in it",
    "value",
    holds="hostname",
    dotted=True,
    case="torch.save(state, hostname)",
    otherwise="files of their own for each node count as one",
)
OF_ONE_NODE = Guess(
    "the world is counted on one node",
    "text",
    holds="gpu device local nproc",
    dotted=True,
    case='dist.init_process_group("nccl", rank=args.local_rank, world_size=args.n_gpu)',
    otherwise="a local rank in a world of one node, where it is the rank, counts as wrong",
)
NODE = Guess(
    "how many nodes there are, or which of them this is",
    "value",
    ends="nnodes node_rank group_rank slurm_nodeid slurm_job_num_nodes slurm_job_nodelist slurm_nodelist",
    case='node = int(os.environ["SLURM_NODEID"])',
    otherwise="a script for several nodes counts as one for a single node, where the local rank is the rank",
)
SPREAD = Guess(
    "the number of ranks may be in it",
    "value",
    holds="gpu world node rank process device total global effective replica worker",
    dotted=True,
    case="steps = len(dataset) // total_batch_size",
    otherwise="steps that were divided by the number of ranks under another name count as not divided",
)
WAITS = Guess(
    "waits for the other ranks",
    "function",
    ends="barrier",
    case="dist_barrier()",
    otherwise="a file that one rank makes while the others wait counts as written by all",
)
SETS_SEED = Guess(
    "does nothing but set seeds",
    "function",
    holds="seed determinis",
    case="def make_deterministic(seed):",
    otherwise="a finding about seeds stands in the helper, where the one who reads it cannot change anything",
)

_SCOPES: dict[str, str] = dict.fromkeys(GLOBAL_RANK.words, "global")
_SCOPES |= dict.fromkeys(LOCAL_RANK.words, "local")
_SCOPES |= dict.fromkeys(GROUP_RANK.words, "group")


def says_rank(last: str) -> str | None:
    """Of which rank a name speaks, in lower case and without underscores in front; None for no rank."""
    return _SCOPES.get(last)
