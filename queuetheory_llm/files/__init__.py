"""The only place that reads or writes: model files, traces, profiles, results."""
