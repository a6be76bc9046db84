"""The semantic model of a training program: what is reached, on which ranks, with which values.

``trace`` walks a script abstractly from its entry, across files, as every rank of a distributed launch would run it,
and records facts (``facts``). Rules query the facts; they never see syntax.
"""
