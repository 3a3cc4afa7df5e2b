"""The compatibility matrix: commands that try the plugin on one combination each, and the page made from their results.

``make matrix`` runs them. README.md in this directory says how to add a cell:

    cells    the combinations, which are in cells.toml, and the commands that try them
    output   what a command prints: tests, versions
    runner   runs a cell's command; keeps log and result in the cache
    results  results.json, which the page is made from
    page     docs/compatibility.md: the tables, page.template around them
"""
