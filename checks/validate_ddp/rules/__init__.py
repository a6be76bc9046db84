"""The rules: one file each, with all of it: documentation, trigger, cases, ``check(program)``, ``observe(run)``."""
