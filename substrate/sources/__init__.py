"""Where skills come from: each source yields layers for the catalog."""
