def contestant(): raise SystemExit
