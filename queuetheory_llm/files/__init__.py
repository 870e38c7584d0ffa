"""The only place that reads or writes files: models, traces, profiles, results."""
