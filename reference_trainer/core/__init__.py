"""The part to copy: distributed training that equals one process, in files that import nothing else of ours.

A step, without what a run needs around it (`step.train_step` is the same, with logs, a schedule and an average):

    def train_step(model, objective, optimizer, batches, world):
        # The mean over all samples of all ranks and micro-steps: their number first.
        count = sum(objective.count(batch) for batch in batches)
        total = sum_count(count, world.group, world.device)
        optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            # Gradients are sent once, with those of the last micro-step.
            with synchronized(model, batch is batches[-1]):
                loss = objective.loss(model, batch)
                # DDP averages over W ranks: W / N makes the mean of it, however uneven the ranks are.
                (loss.sum * (world.size / total)).backward()
        # Gradients are those of the whole batch here, the same on all ranks.
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step.py         that, whole                     plan.py  which samples, how many steps: arithmetic
    objective.py    what is trained: its loss       data.py  the stream that follows the plan
    launch.py       which rank this is              club.py  CLUB over the global batch
    collectives.py  what ranks say to each other    save.py  files that are whole or not there
"""

from __future__ import annotations


class ConfigError(ValueError):
    """Something that cannot work as it was asked for; the message is one line: what, where, what to do."""
