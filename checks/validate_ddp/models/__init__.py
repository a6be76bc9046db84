"""What the libraries that training scripts use do: PyTorch, Accelerate, Lightning Fabric, Horovod, MPI, the builtins.

Each file declares what its libraries have in ``DECLARED``, one row for each thing, with a function where the row alone
cannot say it. A function gets the machine and the call and returns a value, recording facts on the way.
"""
