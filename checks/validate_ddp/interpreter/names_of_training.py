"""All guesses from names of what trains, draws, saves, gathers and reports: each with its case."""

from __future__ import annotations

from validate_ddp.interpreter.guess import Guess

OPTIMIZER = Guess(
    "an optimizer",
    "value",
    words="opt opt_g opt_d g_opt d_opt opt_ae opt_disc",
    holds="optim",
    case="self.optimizer.step()",
    otherwise="a training whose optimizer is made out of sight has no step",
)
SCHEDULE = Guess(
    "makes a schedule of the learning rate",
    "function",
    holds="schedul",
    case="scheduler = build_scheduler(optimizer, len(loader) * epochs)",
    otherwise="a number of steps that goes into a schedule of the script's own is not followed",
)
TURNS = Guess(
    "the number of turns in which gradients are added up, or how many there have been",
    "value",
    holds="accum",
    but="loss",
    case="if step % args.grad_accum_steps == 0:",
    otherwise="an accumulation is not seen where the condition compares counters",
)
FROZEN = Guess(
    "a model that is not trained",
    "value",
    holds="teacher ema momentum target frozen ref_ reference key_enc encoder_k _k",
    case="key = self.encoder_k(images)",
    otherwise="the output of a teacher counts as one whose gradient is lost",
)
KEEPING = Guess(
    "keeps gathered features for later steps, where they have no gradient by design",
    "function",
    holds="queue bank memory momentum buffer center",
    case="def _dequeue_and_enqueue(self, keys):",
    otherwise="features for a queue count as ones whose gradient is lost",
)
GRADIENT = Guess(
    "gradients, or what holds them",
    "value",
    words="grad data flat_grads grads",
    case="dist.all_reduce(flat_grads)",
    otherwise="gradients that the script averages by itself count as never averaged",
)
REDUCING = Guess(
    "may put the ranks' values together",
    "function",
    holds="reduce gather sync average_across aggregate merge collect bcast broadcast",
    case="accuracy = meters.synchronize_between_processes(accuracy)",
    otherwise="a metric that a helper out of sight has combined counts as that of one rank",
)
SHARED = Guess(
    "what all ranks have put together, and so agree about",
    "value",
    holds="reduc gather sync global all_rank agree",
    case="if math.isnan(loss_reduced):",
    otherwise="a way out that all ranks take together counts as one of each rank's own",
)
GATHERS = Guess(
    "gathers for its caller",
    "function",
    holds="gather reduce sync average",
    case="def concat_all_gather(tensor):",
    otherwise="the finding stands in the helper, which is right for other uses, and not where the loss is made",
)
REPORTS = Guess(
    "tells somebody of a number",
    "function",
    words="""print info warning log add_scalar add_scalars log_metric log_metrics log_dict write report track
    add_hparams""",
    case='logger.log_metric("accuracy", accuracy)',
    otherwise="what is logged by a library that is not modelled counts as not reported",
)
TELLING = Guess(
    "only tells of a path that it is given",
    "function",
    words="print info debug warning log write",
    case='logger.info("saved to %s", path)',
    otherwise="a message about a file counts as a use of it, and the fix of its save as unsafe",
)
LOSS = Guess(
    "a loss",
    "value",
    holds="loss",
    dotted=True,
    case='print(f"step {step}: {loss.item():.3f}")',
    otherwise="a loss of rank zero's own batch that is printed counts as any number, and is not told of",
)
MASK = Guess(
    "says which elements of a batch count",
    "value",
    parts="mask masks valid",
    but="_idx _ids _index num_",
    case='loss = (loss * batch["mask"]).sum() / batch["mask"].sum()',
    otherwise="a loss that each rank divides by the number of its own frames counts as one over equal shares",
)
LENGTHS = Guess(
    "says how many elements of each sample count",
    "value",
    parts="lengths lens ntokens",
    case="loss = loss / batch.target_lengths.sum()",
    otherwise="a loss that each rank divides by the number of its own tokens counts as one over equal shares",
)
AGGREGATE = Guess(
    "sums up the numbers of all batches",
    "function",
    words="""mean sum average nanmean fmean accuracy_score f1_score roc_auc_score average_precision_score
    mean_squared_error mean_absolute_error r2_score""",
    case="accuracy = np.mean(scores)",
    otherwise="the mean of a list of results counts as a number of one batch",
)
COUNTING = Guess(
    "counts, as epochs and steps are counted",
    "function",
    words="range trange xrange count arange epoch_range cycle",
    case="for epoch in trange(args.epochs):",
    otherwise="a loop over epochs is not known as one",
)
PASSING = Guess(
    "gives what it is given, one by one",
    "function",
    words="tqdm enumerate list iter track progress_bar zip log_every reversed",
    case="for epoch in track(range(9)):",
    otherwise="a loop over epochs with a bar is not known as one",
)
SAVES = Guess(
    "may write a file",
    "function",
    holds="save",
    case="misc.save_model(args, model)",
    otherwise="a script whose saves are out of sight counts as one that saves nothing",
)
WRITES = Guess(
    "writes a file and nothing else",
    "function",
    words="yaml_save save_yaml dump_yaml write_yaml save_json dump_json write_json",
    case="save_json(results, path)",
    otherwise="a file that a helper out of sight writes on every rank counts as not written",
)
KEEPS_FUNCTION = Guess(
    "keeps a function for later, and does not call it",
    "function",
    holds="register hook callback",
    dotted=True,
    case="trainer.register_forward_hook(report)",
    otherwise="a function that runs later, on ranks nobody knows, counts as run here by all",
)
TOKENIZER = Guess(
    "no model: a tokenizer, a configuration or the like, which is small",
    "value",
    holds="token processor config extractor",
    dotted=True,
    case='tokenizer.save_pretrained("out")',
    otherwise="its small files count as a checkpoint that several ranks write at once",
)
TRAINED_STATE = Guess(
    "the state of a model, or a checkpoint",
    "value",
    holds="state_dict model ckpt",
    dotted=True,
    case="torch.save(self.model_without_ddp, path)",
    otherwise="a checkpoint of what was made out of sight counts as a file of other data",
)
STATE = Guess(
    "what a checkpoint holds",
    "value",
    parts="""state model net network generator discriminator ema student teacher backbone encoder decoder lora adapter
    weights optimizer optim ckpt checkpoint""",
    case='torch.save({"optimizer": held}, path)',
    otherwise="it is not known to be equal on all ranks, and a save of it counts as one that may be meant for each",
)
WITHOUT_TENSORS = Guess(
    "no state on a device: a schedule, a sampler or the like",
    "value",
    holds="sched sampler scaler loader",
    dotted=True,
    case='lr_scheduler.load_state_dict(torch.load("schedule.pt"))',
    otherwise="a load of numbers, which lie on no GPU, counts as one that fills GPU 0",
)
DROPPING = Guess(
    "leaves parts of a network out at random, as dropout does",
    "class",
    holds="drop",
    case="class DropPath(nn.Module):",
    otherwise="equal seeds are told of for what only regularizes",
)
DATASET = Guess(
    "a data set's class",
    "class",
    ends="dataset folder",
    case="class Images(ImageFolder):",
    otherwise="what a data set's methods draw counts as drawn by the training itself",
)
MODULE = Guess(
    "a model's class",
    "class",
    ends="module",
    case="class Net(LightningModule):",
    otherwise="a model that was given a batch counts as an object that has summed it up",
)
ITERABLE = Guess(
    "a data set that may share itself out",
    "class",
    holds="iterable",
    case="class Shards(IterableDataset):",
    otherwise="a data set that gives each rank its own samples counts as given whole to each",
)
STREAM = Guess(
    "a data set that may share itself out",
    "value",
    holds="iterable web shard stream",
    dotted=True,
    case="loader = DataLoader(wds.WebDataset(urls))",
    otherwise="a data set that gives each rank its own samples counts as given whole to each",
)
WRAPPER = Guess(
    "a class of wrappers for several ranks",
    "class",
    words="ddp fsdp",
    holds="parallel",
    case="if isinstance(model, DDP):",
    otherwise="a question whether the model is wrapped stays open, and both branches are walked",
)
PLUGIN = Guess(
    "a setting that shares out the model's state",
    "class",
    ends="plugin()",
    dotted=True,
    case="accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin())",
    otherwise="a save of a sharded state on some ranks is only an advice",
)
SEEDING = Guess(
    "sets the seeds of all generators",
    "function",
    words="seed_everything set_seed set_random_seed seed_torch random_seed",
    case="set_random_seed(args.seed)",
    otherwise="a script whose helper for seeds is out of sight counts as not seeded",
)
SEED = Guess(
    "a seed that is the same on every rank",
    "option",
    words="seed manual_seed manualseed random_seed rng_seed rand_seed train_seed global_seed",
    case="torch.manual_seed(args.seed)",
    otherwise="an option for seeds counts as one that may differ between the ranks",
)
RANDOM_OPTION = Guess(
    "tells a data set or its transform to change samples at random",
    "option",
    words="""flip hflip vflip horizontal_flip vertical_flip random_flip flip_prob hflip_prob vflip_prob random_crop
    rand_crop crop_scale multi_scale augment augmentation augmentations data_augmentation do_augment use_augmentation
    aug color_jitter color_distortion colorjitter gaussian_blur random_erase random_erase_prob random_erasing reprob
    re_prob auto_augment auto_augment_policy aa rand_augment randaugment autoaugment augmix_severity random_rotation
    random_rotate random_scale random_mirror cutout horizontal_flip_prob local_crops_number local_crops_scale
    global_crops_scale""",
    case="train_set = build_dataset(root, hflip=True)",
    otherwise="samples that are changed out of sight count as never changed, and equal seeds as harmless",
)
RANDOM_CLASS = Guess(
    "changes samples at random; its underscores are left out",
    "function",
    holds="""randomcrop randomresize randomflip randomhorizontal randomrot randomscale randomaffine randomeras randaug
    randomaug multicrop autoaugment trivialaugment augmix colorjitter dataaugment trainaugment""",
    case="transform = MultiCropTransform(size)",
    otherwise="samples that are changed out of sight count as never changed, and equal seeds as harmless",
)
COMMAND = Guess(
    "turns a function into a whole command, which ends the process",
    "text",
    holds="click command typer app",
    dotted=True,
    case="@app.command()",
    otherwise="a fix puts its statement where the process never comes",
)
NOT_RETURNING = Guess(
    "does not come back",
    "function",
    words="run start typer exit",
    case="app.run(main)",
    otherwise="a fix puts its statement where the process never comes",
)
ASKS_FOR_FILE = Guess(
    "asks whether a file is there",
    "function",
    ends="exists isfile is_file",
    case="if os.path.isfile(path):",
    otherwise="a file that is made once, while the others wait, counts as written by all",
)
FINDS_FILES = Guess(
    "looks for files, moves them, or starts what may",
    "function",
    ends="glob listdir scandir iterdir rename os.system os.replace",
    holds="subprocess",
    dotted=True,
    case='paths = glob("checkpoints/*")',
    otherwise="a file that the program finds by another name counts as one that nobody uses, and the fix as safe",
)
