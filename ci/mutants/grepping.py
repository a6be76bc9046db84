"""The baseline: a validator that greps for words, as projects write them, made as strong as its kind can be.

It reads all files of a script as one text. A word that must be there and is not, or a pattern that must not be there
and is, counts as a finding of that code, on any line: the lines are not asked of it.
"""

from __future__ import annotations

import re
from pathlib import Path

from ci.mutants.checking import Said

_GUARD = r"if [^\n]*(?:rank\(?\)? == 0|is_main|is_master|master_process)[^\n]*:\n"
_COLLECTIVE = r"(?:dist|accelerator|fabric)\.(?:barrier|all_reduce|all_gather|reduce|wait_for_everyone)\("
_ARGUMENTS = r"[^()]*(?:\([^()]*\)[^()]*)*"
_WRAP = r"(?:DDP|DistributedDataParallel|FSDP)\("

WITHOUT: dict[str, tuple[str, str]] = {
    "DDP101": (r"init_process_group\(", r"destroy_process_group\("),
    "DDP102": (r"nccl", r"set_device\(|cuda:\{|device_ids="),
    "DDP201": (r"DistributedSampler\(", r"\.set_epoch\("),
    "DDP202": (_WRAP, rf"DataLoader\({_ARGUMENTS}sampler="),
    "DDP205": (_WRAP + r"[\s\S]*randn", r"seed\([^\n]*rank"),
    "DDP304": (r"accum", r"no_sync|\.accumulate\("),
    "DDP501": (r"torch\.save\([\s\S]*state_dict\(\)|state_dict\(\)[\s\S]*torch\.save\(", r"\.module|unwrap|FSDP"),
    "DDP502": (r"torch\.save\(", _GUARD),
    "DDP601": (r"\.eval\(\)", r"all_reduce\(|gather_for_metrics|reduce\("),
}
"""Where the first is found, the second has to be."""

WITH: dict[str, str] = {
    "DDP103": r"set_device\((?:self\.)?(?:global_)?rank\)|cuda:\{rank\}|device_ids=\[rank\]|"
    r"(?:local_rank|set_device|device)[^\n]*environ\[\"RANK\"\]",
    "DDP104": r"init_process_group\([^\n]*[^_]rank=(?:local_rank|[^\n]*LOCAL_RANK)|world_size=[^\n]*device_count\(\)",
    "DDP105": r"--local[_-]rank",
    "DDP111": r"timeout=\d",
    "DDP203": rf"DataLoader\({_ARGUMENTS}(?:sampler={_ARGUMENTS}shuffle=True|shuffle=True{_ARGUMENTS}sampler=)",
    "DDP301": r"=[^\n]*\.module\(",
    "DDP302": r"dist\.all_gather\(",
    "DDP303": r"\.module\.\w+ = ",
    "DDP305": r"with [^\n]*no_sync\(\)[^\n]*:\n[^\n]*backward",
    "DDP306": r"accumulate\([^\n]*\):\n[^\n]*zero_grad",
    "DDP307": r"nn\.DataParallel\(",
    "DDP312": _WRAP + _WRAP,
    "DDP401": _GUARD + r"\s+(?:[^\n]*\n\s+)?" + _COLLECTIVE,
    "DDP402": _GUARD + r"\s+[^\n]*(?:evaluate|validate|model)\(",
    "DDP403": r"try:\n\s+" + _COLLECTIVE,
    "DDP404": r"if [^\n]*(?:rank|isfinite|isnan)[^\n]*:\n\s+(?:break|continue|return)\n",
    "DDP405": r"[^\n]* if [^\n]*rank == 0 else None",
    "DDP406": r"\n\s+(?:accelerator|fabric)\.(?:reduce|all_reduce)\(|async_op=True(?![\s\S]*\.wait\()",
    "DDP503": r"if [^\n]*local_rank\"?\]?\)? == 0|if [^\n]*LOCAL_RANK|is_local_main_process",
    "DDP504": r"torch\.load\((?![^\n]*map_location)",
    "DDP506": _GUARD + r"\s+[^\n]*(?:state_dict_type|save_state|= model\.state_dict)",
    "DDP602": r"steps[^\n]*=[^\n]*len\([^\n]*(?:dataset|data|set)\) //",
}
"""Where this is found, something is wrong."""


def run_grep(texts: dict[str, str], entry: str, folder: Path) -> list[Said]:
    """What the baseline says; the line is where its pattern is, or 1 for a word that is missing."""
    text = "\n".join(texts.values())
    said = []
    for code, (needs, wants) in WITHOUT.items():
        if re.search(needs, text) and not re.search(wants, text):
            said.append(Said(entry, 1, code, "error"))
    for code, pattern in WITH.items():
        found = re.search(pattern, text)
        if found:
            said.append(Said(entry, text.count("\n", 0, found.start()) + 1, code, "error"))
    return said
