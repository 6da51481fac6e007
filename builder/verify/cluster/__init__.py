"""Workers on other machines, which Dask carries the tasks of a run to."""
