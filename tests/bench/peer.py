def contestant():
    raise SystemExit
