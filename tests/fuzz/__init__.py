"""Coverage-guided fuzzing with atheris: ``make fuzz``. A target is a module that says what holds for every input.

atheris has wheels for Linux on x86-64 alone, so it is no part of the lock: ``make fuzz`` brings it.
"""
