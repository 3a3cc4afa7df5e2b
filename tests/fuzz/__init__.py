"""Coverage-guided fuzzing with atheris: ``make fuzz``. A target is a module that checks every input.

atheris has wheels for Linux on x86-64 only, so it is not in the lock file: ``make fuzz`` installs it.
"""
