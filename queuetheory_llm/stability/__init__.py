"""Whether a system is stable: pure functions from models to verdicts, margins and regions."""
