"""All questions to the bytes of a program's files: what a word anywhere in them says, each with its case."""

from __future__ import annotations


class Mention:
    """What any of the ``words`` says, wherever it stands in the program's files, comments included.

    case: a line of the script that asked for it, as it is met. otherwise: what goes wrong without it.
    """

    __slots__ = ("case", "otherwise", "says", "words")

    def __init__(self, says: str, *words: str, case: str, otherwise: str) -> None:
        self.says, self.case, self.otherwise = says, case, otherwise
        self.words = tuple(word.encode() for word in words)


GROUP_DESTROYED = Mention(
    "a file that is shared with trainers destroys the group",
    "destroy_process_group",
    case="    dist.destroy_process_group()",
    otherwise="a tool for one process counts as one that leaves its group behind",
)
DEVICE_BY_OTHERS = Mention(
    "somebody else gives each rank its device",
    "CUDA_VISIBLE_DEVICES",
    "cuda.device(",
    "deepspeed",
    "accelerat",
    "TrainingArguments",
    case='os.environ["CUDA_VISIBLE_DEVICES"] = str(local_rank)',
    otherwise="a process that sees one device only is told to choose it",
)
DEVICE_SEEN = Mention(
    "each process may see its own device only, or choose one out of sight",
    *"CUDA_VISIBLE_DEVICES cuda.device( TrainingArguments set_device".split(),
    case='os.environ["CUDA_VISIBLE_DEVICES"] = str(local_rank)',
    otherwise="a barrier of processes that see one device each counts as one on the same device",
)
DEVICE_PER_RANK = Mention(
    "each rank may choose its device, in a way that is not followed",
    *"set_device local_rank LOCAL_RANK localrank SLURM_LOCALID local_process gpu_id ightning index=".split(),
    *('"cuda:', "'cuda:", "cuda:{", "cuda:%"),
    case='device = f"cuda:{rank}"',
    otherwise="a script that chooses the device in code out of sight counts as one that never does",
)
DEVICE_ID = Mention(
    "each rank may be given its device",
    "device_id",
    case="Trainer(device_id=rank)",
    otherwise="a script that chooses the device in code out of sight counts as one that never does",
)
NO_LOCAL_RANK = Mention(
    "another launcher than torch's starts the ranks, which sets no LOCAL_RANK",
    *"SLURM_ OMPI_ PMI_ horovod mpi4py".split(),
    case='rank = int(os.environ["SLURM_PROCID"])',
    otherwise="a fix reads a variable that is not set",
)
LOCAL_RANK_ELSEWHERE = Mention(
    "the local rank comes from elsewhere too",
    *"LOCAL_RANK SLURM_LOCALID LOCALRANKID get_node_local_rank deepspeed HfArgumentParser".split(),
    case='args.local_rank = int(os.environ["LOCAL_RANK"])',
    otherwise="an option that is only a fallback counts as the only source",
)
THROWN_AWAY = Mention(
    "gradients are thrown away, as in a benchmark",
    ".grad = None",
    case="    parameter.grad = None",
    otherwise="a benchmark counts as a training that forgets to average",
)
SYNC_BY_HAND = Mention(
    "the program says itself when gradients are sent",
    *".no_sync require_backward_grad_sync set_requires_gradient_sync no_backward_sync".split(),
    *"delay_allreduce disable_allreduce".split(),
    case="    model.require_backward_grad_sync = last",
    otherwise="an accumulation that sends once counts as one that sends each time",
)
AVERAGED_BY_HAND = Mention(
    "gradients may go through a collective of the script's own",
    *"average_grad sync_grad reduce_grad allreduce_grad grad_sync reduce_param".split(),
    case="average_gradients(model)",
    otherwise="gradients that a helper averages count as never averaged",
)
OTHER_WAYS = Mention(
    "there is another way to several GPUs, and this one is the fallback of a single process",
    *"DistributedDataParallel FullyShardedDataParallel fully_shard Accelerator deepspeed horovod ightning".split(),
    case="    model = DistributedDataParallel(model)",
    otherwise="the fallback for one process is told to be what stands beside it",
)
TORCHRUN = Mention(
    "torch's launcher starts the ranks, each of which is then alone in the world of MPI",
    "LOCAL_RANK",
    case='local_rank = int(os.environ["LOCAL_RANK"])',
    otherwise="a leftover of MPI, where each rank is alone, counts as a collective of some ranks",
)
NO_TORCHRUN = Mention(
    "something else than torch's launcher may start the ranks, which sets no address for them",
    *"SLURM_ OMPI_ PMI_ horovod mpi4py deepspeed .spawn( Process( start_processes".split(),
    case='os.environ["RANK"] = os.environ["SLURM_PROCID"]',
    otherwise="an address that nobody else sets counts as one that replaces the launcher's",
)
MPIRUN = Mention(
    "MPI's launcher starts the ranks",
    'environ["RANK"]',
    "environ['RANK']",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    case='os.environ["RANK"] = str(comm.Get_rank())',
    otherwise="a collective of MPI on some ranks counts as one on a rank that is alone",
)
BUFFERS = Mention(
    "something brings buffers along, which a wrapper's forward broadcasts",
    *"Norm1d Norm2d Norm3d BatchNorm register_buffer Buffer( torchvision.models models. timm create_model".split(),
    *"from_pretrained hub.load".split(),
    case="    self.norm = nn.BatchNorm2d(64)",
    otherwise="a forward that hangs is only an advice",
)
ENGINE = Mention(
    "Accelerate may be told to make a DeepSpeed engine of the model",
    "deepspeed",
    "DeepSpeed",
    case="accelerator = Accelerator(deepspeed_plugin=plugin)",
    otherwise="a forward on some ranks, which an engine bears, counts as one that waits for the others",
)
SYNCED_NORM = Mention(
    "the statistics of BatchNorm may be those of all ranks, or are chosen not to be",
    *"SyncBatchNorm convert_sync convert_syncbn sync_bn syncbn sync-bn SyncBN BatchNormSync".split(),
    case="    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)",
    otherwise="a model that is converted out of sight counts as one whose ranks normalise alone",
)
PREFIX_HANDLED = Mention(
    "the program takes the wrapper's prefix off the names where it loads",
    '"module.',
    "'module.",
    "consume_prefix_in_state_dict_if_present",
    case='state = {key.replace("module.", ""): value for key, value in state.items()}',
    otherwise="a state that is saved with the prefix on purpose counts as one that cannot be loaded",
)
_MORE_THAN_ONE = ("$", "{", "<", "N", "1:", *"23456789", *(f"1{digit}" for digit in range(10)))
_STARTED = [f"nnodes{sign}{number}" for sign in "= " for number in _MORE_THAN_ONE]
SEVERAL_NODES = Mention(
    "the script is meant for several nodes",
    *('"RANK"', "'RANK'", "global_rank", "num_nodes", "node_rank", "NODE_RANK", "GROUP_RANK", "SLURM_"),
    *("nnodes,", "nnodes:", "nnodes)", "nnodes]", ".nnodes", 'nnodes"', "nnodes'", *_STARTED),  # not `--nnodes=1`
    case='rank = int(os.environ["RANK"])',
    otherwise="a save on every node is only an advice",
)
SEVERAL_STARTED = Mention(
    "a usage line starts the script on several nodes",
    *_STARTED,
    case="# torchrun --nnodes=2 --nproc_per_node=8 train.py",
    otherwise="a local rank for a rank in a script for several nodes counts as one that may work",
)
EACH_NODE = Mention(
    "each node is to have a checkpoint of its own",
    "save_on_each_node",
    case="if args.save_on_each_node:",
    otherwise="saves for each node's own disk count as a collision",
)
ON_GPU = Mention(
    "something may lie on a GPU",
    *"cuda nccl xpu npu hpu device_map accelerat ightning deepspeed".split(),
    case='    model.to("cuda")',
    otherwise="a script that trains on the CPU alone is warned of the memory of GPU 0",
)
ON_CPU = Mention(
    "the checkpoint is put together from shards, or gathered on the CPU, and holds CPU tensors",
    "dcp_to_torch_save",
    "merge_fsdp_weights",
    "offload_to_cpu=True",
    "cpu_offload=True",
    case="dcp_to_torch_save(folder, path)",
    otherwise="a load of CPU tensors counts as one that fills GPU 0",
)
OWN_SHARD = Mention(
    "each rank saves its own shard",
    "LOCAL_STATE_DICT",
    case="with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):",
    otherwise="a state which no rank waits for counts as a collective of some ranks",
)
OUTLIVES = Mention(
    "something may outlive the last statement",
    "Thread",
    "atexit",
    "async_save",
    "concurrent.futures",
    case="    atexit.register(close)",
    otherwise="a fix destroys the group under the feet of a thread that still uses it",
)
LEFT_OUT = Mention(
    "targets are given the class that a cross entropy leaves out",
    *("] = -100", ", -100)", "[-100]", "value=-100", "label_pad_token_id", "DataCollatorFor"),
    *("] = IGNORE_INDEX", "[IGNORE_INDEX]", "IGNORE_INDEX)", "] = ignore_index", "[self.ignore_index]"),
    case="    labels[~chosen] = -100",
    otherwise="a mean over the tokens of each rank that count is taken for one over equal shares",
)
RESIDUAL = Mention(
    "of the models that are found by name one with BatchNorm is meant",
    *"resnet resnext densenet".split(),
    case='parser.add_argument("--arch", default="resnet18")',
    otherwise="a model without BatchNorm, as a transformer by its name, is told to have it",
)
