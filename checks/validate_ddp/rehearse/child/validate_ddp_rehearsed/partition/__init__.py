"""The partition check: in short runs of its own, whether the gradient of W ranks is made of those of one process.

Reading order: ``begin`` (the roles of its processes), ``tape``, ``lengths``, ``models``, ``gradients``, ``steps``,
``acts``, ``measure``, ``readout``; ``slope``, ``parts``.
"""
