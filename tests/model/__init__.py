"""Models: what a part may do, small enough to be tried in every order, and held against the part itself."""
